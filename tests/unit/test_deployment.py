"""What is shipped for running dlpipe fits it: Compose file, image, units, manifests, alerts. OPS-3, OPS-9."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from celery.bin.celery import celery as celery_command

from dlpipe import cli, settings
from dlpipe.core import flow
from dlpipe.core.flow import Queue
from dlpipe.pipeline.round import Report
from dlpipe.telemetry import series
from dlpipe.telemetry.series import Kind
from tests.compose import OURS, WORKERS, load
from tests.conftest import absent

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "ops"
MANIFESTS = sorted((OPS / "kubernetes").glob("*.yaml"))
UNITS = sorted(file for file in (OPS / "systemd").iterdir() if file.suffix in (".service", ".target"))
ALERTS = yaml.safe_load((OPS / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
RULES = [rule for group in ALERTS for rule in group["rules"]]
DASHBOARD = json.loads((OPS / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {*settings.names().values(), *settings.secret_files(), settings.CONFIG_ENV}


def tool(name: str, how: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        absent(f"no {name} to check with: {how}")
    return found


def ran(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=60)


# ── docker-compose.yml ────────────────────────────────────────────────────────────────────────────

FILE = load()
ONCE = ("migrate", "s3-bucket")
SERVICES: dict[str, Any] = FILE["services"]


def test_the_compose_file_fits_the_schema_of_its_kind() -> None:
    found = ran(
        tool("check-jsonschema", "run make setup"), "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_checked_restarted_bounded_and_has_few_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] not in ("root", "0", "0:0")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"cpus", "memory", "pids"} <= service["deploy"]["resources"]["limits"].keys()
    if name in ONCE:
        assert service["restart"].startswith("on-failure")
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


def test_what_is_published_is_published_on_this_host_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_our_services_write_nowhere_but_in_their_volumes() -> None:
    assert all(SERVICES[name]["read_only"] is True for name in OURS)


def test_archives_of_purged_jobs_outlive_the_container_that_wrote_them() -> None:
    """What was purged is nowhere else; commands are run in the worker for `plan`."""
    service = SERVICES["worker-plan"]
    home = service["environment"]["DLPIPE_HOME"]
    assert home in [mount.split(":")[1] for mount in service["volumes"]]
    assert home not in [mount.split(":")[0] for mount in service["tmpfs"]]
    container, pod = next((found, pod) for name, found, pod in containers() if name == "worker-plan")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volume = next(one for one in pod["volumes"] if one["name"] == mounts[home])
    assert "emptyDir" not in volume


def test_each_queue_has_a_worker() -> None:
    assert {SERVICES[name]["environment"]["QUEUE"] for name in WORKERS} == {queue.value for queue in Queue}
    for name in WORKERS:
        words = shlex.split(SERVICES[name]["command"])
        queue = SERVICES[name]["environment"]["QUEUE"]
        assert words[words.index("-Q") + 1] == queue
        assert words[words.index("-n") + 1] == f"{queue}@%h"


def test_secrets_are_given_as_files_to_those_who_read_them() -> None:
    for name, service in SERVICES.items():
        text = json.dumps([service.get("command"), service.get("environment"), service.get("healthcheck")])
        read = set(re.findall(r"/run/secrets/([\w.]+)", text))
        assert read == set(service.get("secrets", [])), name
        variables = service.get("environment", {})
        assert not [
            key for key in variables if re.search("PASSWORD|SECRET|KEY|(?<!STORE_)URL", key) and "FILE" not in key
        ], name
    assert {one for service in SERVICES.values() for one in service.get("secrets", [])} == set(FILE["secrets"])


def test_the_script_makes_every_secret_and_keeps_passwords(tmp_path: Path) -> None:
    script, place = str(OPS / "secrets.sh"), tmp_path / "secrets"
    first = ran("sh", script, str(place))
    assert first.returncode == 0, first.stderr
    made = {file.name: file.read_text() for file in place.iterdir()}
    assert {f"{place}/{name}" for name in made} >= {
        one["file"] for one in load({"SECRETS": str(place)})["secrets"].values()
    }
    assert place.stat().st_mode & 0o077 == 0
    words = {name: text for name, text in made.items() if name.endswith("_password")}
    assert len(set(words.values())) == len(words) == 6
    assert all(re.fullmatch("[0-9a-f]{48}", text) for text in words.values())
    assert not any(text in first.stdout + first.stderr for text in words.values())
    assert made["redis_password"] not in made["redis.acl"]
    (place / "flower_users").chmod(0o600)
    (place / "flower_users").write_text(made["flower_users"] + "ann:hers\n")
    again = ran("sh", script, "--broker", "rabbitmq", str(place))
    assert again.returncode == 0, again.stderr
    after = {file.name: file.read_text() for file in place.iterdir()}
    assert after.pop("broker_url") == f"amqp://dlpipe:{made['rabbitmq_password']}@rabbitmq:5672//"
    assert sorted(after.pop("flower_users").splitlines()) == sorted(["ann:hers", made["flower_users"].strip()])
    assert after == {name: text for name, text in made.items() if name not in ("broker_url", "flower_users")}


def test_the_script_run_again_keeps_the_broker_and_follows_a_new_password(tmp_path: Path) -> None:
    script, place = str(OPS / "secrets.sh"), tmp_path / "secrets"
    assert ran("sh", script, "--broker", "rabbitmq", str(place)).returncode == 0
    (place / "s3_password").unlink()
    assert ran("sh", script, str(place)).returncode == 0
    assert (place / "broker_url").read_text().startswith("amqp://")
    key = (place / "s3_password").read_text()
    assert all(key in (place / name).read_text() for name in ("s3.json", "store_credentials"))
    (place / "store_credentials").chmod(0o600)
    (place / "store_credentials").write_text(clouds := 'access_key_id = "AKIA"\nsecret_access_key = "theirs"\n')
    assert ran("sh", script, "--broker", "redis", str(place)).returncode == 0
    assert (place / "broker_url").read_text().startswith("redis://")
    assert (place / "store_credentials").read_text() == clouds


@pytest.mark.parametrize("name", ["postgres", "redis", "rabbitmq", "s3"])
def test_a_password_that_would_break_an_address_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}_password").write_text("s3:s@me/#%41")
    refused = ran("sh", str(OPS / "secrets.sh"), str(tmp_path))
    assert refused.returncode == 2
    assert f"{name}_password" in refused.stderr
    assert "s@me" not in refused.stdout + refused.stderr
    assert not (tmp_path / "database_url").exists()


def test_a_plain_password_of_ones_own_is_used(tmp_path: Path) -> None:
    (tmp_path / "postgres_password").write_text("Correct-horse_battery.staple~1\n")
    (tmp_path / "grafana_password").write_text("p@ss:w/rd")
    assert ran("sh", str(OPS / "secrets.sh"), str(tmp_path)).returncode == 0
    assert ":Correct-horse_battery.staple~1@" in (tmp_path / "database_url").read_text()


@pytest.mark.parametrize("words", [["--broker"], ["--broker", "kafka"], ["--force"], ["a", "b"]])
def test_the_script_refuses_what_it_does_not_know(tmp_path: Path, words: list[str]) -> None:
    refused = ran("sh", str(OPS / "secrets.sh"), *words, cwd=tmp_path)
    assert (refused.returncode, list(tmp_path.iterdir())) == (2, [])
    assert refused.stderr.startswith("secrets: ")


# ── the image ─────────────────────────────────────────────────────────────────────────────────────


def test_the_dockerfile_has_no_findings() -> None:
    found = ran(tool("hadolint", "run make setup"), "--failure-threshold", "style", "ops/Dockerfile")
    assert (found.returncode, found.stdout) == (0, "")


def test_the_image_is_locked_by_hashes_and_is_nobody() -> None:
    text = (OPS / "Dockerfile").read_text(encoding="utf-8")
    last = text.split("\nFROM ")[-1]
    installs = re.findall(r"pip install ([^&\\\n]+)", text)
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-deps --no-index" in one for one in installs)
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["10001:10001"]
    assert {SERVICES[name]["user"] for name in OURS} == {"10001:10001"}


def test_all_that_the_image_copies_is_let_through() -> None:
    let = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    text = (OPS / "Dockerfile").read_text(encoding="utf-8")
    copied = [words.split()[:-1] for words in re.findall(r"^COPY ([^-].*)$", text, re.MULTILINE)]
    assert {file for files in copied for file in files} - {"."} <= let
    assert all((ROOT / file).exists() for file in let)


# ── commands, settings ────────────────────────────────────────────────────────────────────────────


def objects() -> list[dict[str, Any]]:
    return [one for file in MANIFESTS for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for one in objects():
        pod = one.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", []):
            yield container["name"], container, pod


def commands() -> Iterator[tuple[str, list[str]]]:
    for name in OURS:
        command = SERVICES[name]["command"]
        yield f"compose {name}", shlex.split(command) if isinstance(command, str) else command
    for name, container, _ in containers():
        yield f"kubernetes {name}", container["command"]
    for file in UNITS:
        for line in re.findall(r"^ExecStart=(.+)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"systemd {file.name}", shlex.split(line.replace("/opt/dlpipe/bin/", ""))


COMMANDS = dict(commands())


@pytest.mark.parametrize("where", COMMANDS)
def test_a_command_exists_with_its_options(where: str) -> None:
    program, *words = COMMANDS[where]
    if program == "dlpipe":
        assert cli.dlpipe.get_command(click.Context(cli.dlpipe), words[0]) is not None
        assert words[1:] == []
        return
    assert (program, words[:2]) == ("celery", ["-A", "dlpipe"])
    name, *options = words[2:]
    if name == "flower":
        from flower.options import default_options

        assert {option.lstrip("-").partition("=")[0] for option in options} <= set(default_options)
        assert any(option.startswith("--conf=/") for option in options)
        return
    command = celery_command.get_command(click.Context(celery_command), name)
    assert command is not None
    known = {spelling for option in command.params for spelling in option.opts}
    assert {option.partition("=")[0] for option in options if option.startswith("-")} <= known


@pytest.mark.parametrize(
    "file",
    [*MANIFESTS, *UNITS, *sorted((OPS / "systemd").glob("*.env")), OPS / "secrets.sh"],
    ids=lambda file: file.name,
)
def test_variables_that_are_named_are_settings(file: Path) -> None:
    named = set(re.findall(r"\bDLPIPE_[A-Z0-9_]*[A-Z0-9]\b", file.read_text(encoding="utf-8")))
    assert named - {"DLPIPE_FLOWER_PORT"} <= VARIABLES


def test_all_ways_to_run_it_run_the_same_services() -> None:
    def services(kind: str) -> dict[str, list[str]]:
        found = {}
        for where, words in COMMANDS.items():
            if where.startswith(kind):
                queue = words[words.index("-Q") + 1] if "-Q" in words else ""
                pool = words[words.index("-P") + 1 : words.index("-P") + 4] if queue else []
                found[f"{words[3] if words[0] == 'celery' else words[1]} {queue}"] = pool
        return found

    assert services("compose") == services("kubernetes")
    files = {file.stem.removeprefix("worker-"): file.read_text() for file in (OPS / "systemd").glob("worker-*.env")}
    made = {
        f"worker {queue}": re.findall(r"^(?:POOL|CONCURRENCY)=(.+)$", text, re.MULTILINE)
        for queue, text in files.items()
    }
    wanted = {name: [pool[0], pool[2]] for name, pool in services("compose").items() if pool}
    assert made == wanted


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────────


def test_manifests_hang_together() -> None:
    found = objects()
    by_kind = {
        kind: {one["metadata"]["name"] for one in found if one["kind"] == kind}
        for kind in {o["kind"] for o in found} - {"Kustomization"}
    }
    (kustomization,) = [one for one in found if one["kind"] == "Kustomization"]
    assert {*kustomization["resources"], "kustomization.yaml"} == {file.name for file in MANIFESTS}
    for one in found:
        if one["kind"] == "ScaledObject":
            assert one["spec"]["scaleTargetRef"]["name"] in by_kind["Deployment"]
            (target,) = [
                d
                for d in found
                if d["kind"] == "Deployment" and d["metadata"]["name"] == one["spec"]["scaleTargetRef"]["name"]
            ]
            assert "replicas" not in target["spec"]  # else each apply would undo the scaling
        if one["kind"] == "Deployment":
            assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
    assert {one["metadata"]["name"].removeprefix("dlpipe-") for one in found if one["kind"] == "Deployment"} | {
        "migrate"
    } == set(OURS)


def test_kustomize_puts_the_manifests_together() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:  # not `absent`: set-up does not install it
        pytest.skip("no kubectl to put the manifests together with")
    made = ran(kubectl, "kustomize", "ops/kubernetes")
    assert made.returncode == 0, made.stderr
    found = {(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(made.stdout)}
    assert found == {(one["kind"], one["metadata"]["name"]) for one in objects() if one["kind"] != "Kustomization"}


@pytest.mark.parametrize("name", [name for name, _, _ in containers()])
def test_a_pod_has_few_rights_and_reads_secrets_from_files(name: str) -> None:
    ((container, pod),) = [(container, pod) for each, container, pod in containers() if each == name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["enableServiceLinks"] is False  # DLPIPE_FLOWER_PORT would be an unknown setting
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert {"requests", "limits"} <= container["resources"].keys()
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    (config,) = [one["data"] for one in objects() if one["kind"] == "ConfigMap"]
    values = {**config, **{one["name"]: one["value"] for one in container.get("env", [])}}
    paths = [value for value in values.values() if value.startswith("/")]
    assert all(any(path.startswith(place) for place in places) for path in paths)


# ── systemd ───────────────────────────────────────────────────────────────────────────────────────


def test_units_are_what_systemd_takes(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "install the Debian package systemd")
    for file in UNITS:
        # The one thing that is not on this machine: where the package is installed.
        text = file.read_text(encoding="utf-8").replace("/opt/dlpipe/bin/celery", "/bin/true")
        (tmp_path / file.name).write_text(text.replace("/opt/dlpipe/bin/dlpipe", "/bin/true"))
    (tmp_path / "dlpipe-worker@net.service").write_text((tmp_path / "dlpipe-worker@.service").read_text())
    names = [str(tmp_path / file.name) for file in UNITS if "@" not in file.name]
    found = ran(analyze, "verify", "--man=no", *names, str(tmp_path / "dlpipe-worker@net.service"))
    said = [line for line in found.stderr.splitlines() if "dlpipe" in line]
    assert (found.returncode, said) == (0, [])


def test_files_that_units_read_are_shipped() -> None:
    for file in UNITS:
        for path in re.findall(r"^EnvironmentFile=/etc/dlpipe/(.+)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            names = [path.replace("%i", queue.value) for queue in Queue] if "%i" in path else [path]
            assert all((OPS / "systemd" / name).is_file() for name in names)
    ports = [re.findall(r"METRICS_PORT=(\d+)", file.read_text()) for file in (OPS / "systemd").glob("worker-*.env")]
    assert len({port for (port,) in ports}) == len(Queue)


# ── how workers end ───────────────────────────────────────────────────────────────────────────────

MARGIN_S = 5
"""What Celery and the kernel take besides, on a machine that is busy."""


def patience() -> Iterator[tuple[str, float, float]]:
    """Who ends workers, for how long that one waits before the kill, and after what time they have ended."""
    for name in WORKERS:
        service = SERVICES[name]
        waits = re.fullmatch(r"([0-9]+)s", service["stop_grace_period"])
        assert waits is not None, name
        yield f"compose {name}", float(waits[1]), grace_s(service["environment"])
    (shared,) = [one["data"] for one in objects() if one["kind"] == "ConfigMap"]
    for name, container, pod in containers():
        if "worker" in container["command"]:
            env = {**shared, **{one["name"]: one["value"] for one in container.get("env", [])}}
            yield f"kubernetes {name}", float(pod["terminationGracePeriodSeconds"]), grace_s(env)
    text = (OPS / "systemd" / "dlpipe-worker@.service").read_text(encoding="utf-8")
    (waits_s,) = re.findall(r"^TimeoutStopSec=([0-9]+)$", text, re.MULTILINE)
    for file in (OPS / "systemd").glob("worker-*.env"):
        env = dict(re.findall(r"(DLPIPE_\w+)=(\S+)", text + file.read_text(encoding="utf-8")))
        yield f"systemd {file.stem}", float(waits_s), grace_s(env)


def grace_s(env: dict[str, str]) -> float:
    return float(env.get("DLPIPE_WORKER_GRACE_S", settings.Worker().grace_s))


def test_whoever_ends_a_worker_gives_it_the_time_that_it_takes() -> None:
    found = list(patience())
    assert {where.partition(" ")[0] for where, _, _ in found} == {"compose", "kubernetes", "systemd"}
    assert len(found) == 3 * len(Queue)
    assert [where for where, waits_s, takes_s in found if waits_s < takes_s + MARGIN_S] == []


def test_systemd_tells_the_main_process_alone() -> None:
    """Its children hear it from the main process; ended by a signal, they could hand nothing back."""
    unit = (OPS / "systemd" / "dlpipe-worker@.service").read_text(encoding="utf-8")
    assert re.findall(r"^Kill\w+=.+$", unit, re.MULTILINE) == ["KillMode=mixed", "KillSignal=SIGTERM"]


# ── metrics in alerts, dashboard and scaling ──────────────────────────────────────────────────────

QUERIES = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in RULES},
    **{f"panel {panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]},
    **{
        f"scaling {one['metadata']['name']}": trigger["metadata"]["query"]
        for one in objects()
        if one["kind"] == "ScaledObject"
        for trigger in one["spec"]["triggers"]
    },
}
BY_TITLE = {one.title: one for one in series.ALL.values()}
_METRIC = re.compile(r"\b(dlpipe_[a-z_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)(=~|!~|!=|=)"([^"]*)"')


def of_series(name: str) -> series.Series:
    found = BY_TITLE.get(name)
    if found is None:
        base = re.sub("_(bucket|sum|count)$", "", name)
        assert BY_TITLE[base].kind is Kind.HISTOGRAM, name
        found = BY_TITLE[base]
    return found


def codes() -> set[str]:
    words: set[str] = set()
    for file in (ROOT / "dlpipe").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        words |= {
            str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return words


@pytest.mark.slow
@pytest.mark.parametrize("where", QUERIES)
def test_a_query_names_metrics_and_labels_that_exist(where: str) -> None:
    query = QUERIES[where]
    for name, matchers in _METRIC.findall(query):
        one = of_series(name)
        for label, how, value in _MATCHER.findall(matchers):
            assert label in one.labels, (name, label)
            values = {
                "stage": {row.name for row in flow.STAGES}, "queue": {queue.value for queue in Queue},
                "kind": set(Report.__dataclass_fields__), "then": {"retried", "postponed", "for_good"},
            }.get(label) or codes()  # fmt: skip
            wanted = re.fullmatch(r"(\w*)\((.*)\)", value)
            alternatives = [wanted[1] + end for end in wanted[2].split("|")] if wanted else value.split("|")
            assert set(alternatives if "~" in how else [value]) <= values, (label, value)
    labels = {label for name, _ in _METRIC.findall(query) for label in of_series(name).labels}
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        assert {label.strip() for label in grouped.split(",")} <= {*labels, "instance", "le"}, query


def test_rules_and_configuration_are_what_prometheus_takes() -> None:
    promtool = tool("promtool", "install the Debian package prometheus")
    found = ran(promtool, "check", "config", "prometheus.yml", cwd=OPS / "prometheus")
    assert found.returncode == 0, found.stdout + found.stderr


def test_alerts_fire_when_they_have_to_and_else_do_not() -> None:
    promtool = tool("promtool", "install the Debian package prometheus")
    found = ran(promtool, "test", "rules", "tests/unit/alerts.yml")
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_alert_is_tried_out() -> None:
    tried = yaml.safe_load((ROOT / "tests" / "unit" / "alerts.yml").read_text(encoding="utf-8"))["tests"]
    fired = {one["alertname"] for case in tried for one in case["alert_rule_test"] if one.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in RULES}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    page = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    chapters = dict(re.findall(r"^## (Dlpipe\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(chapters) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert re.findall(r"^\*\*(.+?)\*\*", chapters[rule["alert"]], re.MULTILINE) == [
            "What it means.",
            "How to look.",
            "What to do.",
        ]


def test_panels_have_places_of_their_own_and_the_chosen_source() -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert taken.setdefault(cell, panel["id"]) == panel["id"], panel["title"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {"${source}"}
    (provisioned,) = yaml.safe_load((OPS / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert provisioned["type"] == DASHBOARD["templating"]["list"][0]["query"]


def test_the_dashboard_shows_every_metric() -> None:
    text = " ".join(query for where, query in QUERIES.items() if where.startswith("panel"))
    shown = {of_series(name).name for name, _ in _METRIC.findall(text)}
    assert shown == set(series.ALL)


def test_prometheus_asks_every_worker_where_it_answers() -> None:
    config = yaml.safe_load((OPS / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (found,) = [one for job in config["scrape_configs"] if job["job_name"] == "dlpipe" for one in job["dns_sd_configs"]]
    assert found["names"] == list(WORKERS)
    assert {SERVICES[name]["environment"]["DLPIPE_METRICS_PORT"] for name in WORKERS} == {str(found["port"])}
