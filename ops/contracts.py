"""Contracts for import-linter that name what is allowed: a list of the forbidden would miss the next package."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class _Allowlist(Contract):
    """Guarded modules import each other and what `allows` says, nothing else."""

    modules = fields.ListField(subfield=fields.ModuleField())

    def allows(self, imported: str) -> bool:
        raise NotImplementedError

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Collect every direct import of something else."""
        guarded = {
            name
            for package in self.modules  # type: ignore[attr-defined]
            for name in {package.name} | graph.find_descendants(package.name)
        }
        strangers = [
            f"{importer} -> {imported}"
            for importer in sorted(guarded)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported not in guarded and not self.allows(imported)
        ]
        return ContractCheck(kept=not strangers, metadata={"strangers": strangers})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each stray import."""
        for stranger in check.metadata["strangers"]:
            output.print_error(stranger, bold=False)

    def _roots(self) -> Iterable[str]:
        return self.session_options["root_packages"]  # type: ignore[no-any-return]


class StandardLibraryOnly(_Allowlist):
    """Option: `modules`, the packages (with all they contain) that must stay free of third-party code."""

    type_name = "standard_library_only"

    def allows(self, imported: str) -> bool:
        return imported.partition(".")[0] in sys.stdlib_module_names | set(self._roots())


class SharesOnly(_Allowlist):
    """Options: `modules`, and `shared`, the only modules of the rest of the project that those may import."""

    type_name = "shares_only"

    shared = fields.ListField(subfield=fields.ModuleField())

    def allows(self, imported: str) -> bool:
        shared = {module.name for module in self.shared}  # type: ignore[attr-defined]
        return imported in shared or imported.partition(".")[0] not in set(self._roots())
