"""A contract for import-linter: these modules import the standard library and each other, nothing else.

A list of forbidden packages would miss the next one somebody installs.
"""

from __future__ import annotations

import sys

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class StandardLibraryOnly(Contract):
    """Option: `modules`, the packages (with all they contain) that must stay free of third-party code."""

    type_name = "standard_library_only"

    modules = fields.ListField(subfield=fields.ModuleField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Collect every direct import of a package from outside the project and the standard library."""
        allowed = sys.stdlib_module_names | set(self.session_options["root_packages"])
        guarded = {
            name
            for package in self.modules  # type: ignore[attr-defined]
            for name in {package.name} | graph.find_descendants(package.name)
        }
        strangers = [
            f"{importer} -> {imported}"
            for importer in sorted(guarded)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported.split(".")[0] not in allowed
        ]
        return ContractCheck(kept=not strangers, metadata={"strangers": strangers})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each stray import."""
        for stranger in check.metadata["strangers"]:
            output.print_error(stranger, bold=False)
