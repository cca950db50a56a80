"""`repot init`: what it writes, and what it never does."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from dotenv import dotenv_values

from repot.config import WorkerSettings, load, variable
from repot.init import BROKERS
from support.deployment import Deployment, init

WRITTEN = [".env", "compose.yaml", "supervisord.conf", "systemd/worker.service"]
OF_A_ROLLOUT = [".env.rollout", "compose.rollout.yaml", "kubernetes/rollout.yaml", "supervisord.rollout.conf"]
CREDENTIALS = ("REDIS_PASSWORD", "RABBITMQ_PASSWORD")


def contents(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("broker", "scheme"), [("redis", "redis"), ("rabbitmq", "amqp")])
def test_the_settings_are_those_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str, scheme: str
) -> None:
    assert init(tmp_path, "--broker", broker, "--app", "shop.celery:app").exit_code == 0
    for name, value in dotenv_values(tmp_path / ".env").items():
        monkeypatch.setenv(name, value or "")
    found = load()
    assert scheme == found.broker_url.scheme
    assert found.app == "shop.celery:app"


@pytest.mark.parametrize("broker", BROKERS)
def test_a_shell_and_a_parser_read_the_same(tmp_path: Path, broker: str) -> None:
    made = Deployment(tmp_path, broker)
    shown = made.run("env").stdout.splitlines()
    assert all(f"{name}={value}" in shown for name, value in made.variables.items())


@pytest.mark.parametrize("broker", BROKERS)
def test_moving_the_mark_is_the_flip(tmp_path: Path, broker: str) -> None:
    """What the comment above the two addresses says."""
    path = Deployment(tmp_path, broker).directory / ".env"
    text = path.read_text()
    before = dotenv_values(path)
    flipped = re.sub(r"(?m)^(# )?(WORKER_BROKER_URL)", lambda m: m[2] if m[1] else f"# {m[2]}", text)
    path.write_text(flipped)
    after = dotenv_values(path)
    schemes = {str(found["WORKER_BROKER_URL"]).partition(":")[0] for found in (before, after)}
    assert {"redis", "amqp"} == schemes


@pytest.mark.parametrize("broker", BROKERS)
def test_the_bridge_reads_the_other_broker(tmp_path: Path, broker: str) -> None:
    """Off until it is switched on; moving both marks turns it round."""
    path = Deployment(tmp_path, broker).directory / ".env"
    text = path.read_text()
    flipped = re.sub(r"(?m)^(# )?(WORKER_BROKER_URL|BRIDGE_READ_URL)", lambda m: m[2] if m[1] else f"# {m[2]}", text)
    for one in (text, flipped):
        path.write_text(one)
        found = dotenv_values(path)
        addresses = {str(found[name]) for name in ("WORKER_BROKER_URL", "BRIDGE_READ_URL")}
        assert {"redis", "amqp"} == {address.partition(":")[0] for address in addresses}
        assert (found["START_BRIDGE"], found["START_FLOWER"], found["START_HEALTHCHECK"]) == ("false", "false", "true")


@pytest.mark.parametrize("broker", BROKERS)
def test_supervisord_has_every_variable_it_reads(tmp_path: Path, broker: str) -> None:
    made = Deployment(tmp_path, broker)
    asked = set(re.findall(r"%\(ENV_([A-Z_]+)\)s", (made.directory / "supervisord.conf").read_text()))
    assert asked <= set(made.variables)


@pytest.mark.parametrize("broker", BROKERS)
def test_the_pool_is_a_fixed_one(tmp_path: Path, broker: str) -> None:
    """Quorum queues and a pool that grows exclude each other."""
    most, least = Deployment(tmp_path, broker).variables["CELERY_WORKER_AUTOSCALE"].split(",")
    assert most == least


def test_every_variable_in_the_files_exists() -> None:
    known = {variable(name) for name in WorkerSettings.model_fields}
    for path in (Path(str(files("repot.init"))) / "files").rglob("*"):
        if path.is_file():
            assert set(re.findall(r"(?:\b|ENV_)(WORKER_[A-Z_]*[A-Z])\b", path.read_text())) <= known, path


def test_two_runs_have_different_credentials_and_one_run_too(tmp_path: Path) -> None:
    made = [Deployment(tmp_path, "redis").variables[name] for name in CREDENTIALS for _ in range(2)]
    assert len(set(made)) == 4
    assert all(re.fullmatch(r"[0-9a-f]{48}", password) for password in made)


def test_passwords_are_in_one_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        made = init(tmp_path, "--broker", "redis")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    password = str(dotenv_values(tmp_path / ".env")["REDIS_PASSWORD"])
    assert password not in made.output
    assert [name for name, text in contents(tmp_path).items() if password in text] == [".env"]


def test_what_was_written_is_data_and_the_rest_is_talk(tmp_path: Path) -> None:
    made = init(tmp_path, "--broker", "redis")
    assert [str(tmp_path / name) for name in WRITTEN] == made.stdout.splitlines()
    assert "docker compose up -d --wait" in made.stderr
    made = init(tmp_path, "--broker", "redis", "--force", "--json")
    assert {
        "written": [str(tmp_path / name) for name in WRITTEN],
        "kept": list(CREDENTIALS),
        "replaced": [],
    } == json.loads(made.stdout)
    assert sorted(WRITTEN) == sorted(contents(tmp_path))


def test_what_force_replaces_in_the_dotenv_is_kept_beside_it(tmp_path: Path) -> None:
    """And Celery's own address, which would contradict the new one, becomes a comment."""
    init(tmp_path, "--broker", "redis")
    path = tmp_path / ".env"
    address = "WORKER_BROKER_URL=redis://:old-password@prod/0"
    before = re.sub("(?m)^WORKER_BROKER_URL=.*", address, path.read_text())
    before += "CELERY_BROKER_URL=redis://:old-password@prod/0\nMINE=1\n"
    path.write_text(before)
    made = init(tmp_path, "--broker", "redis", "--force")
    assert made.exit_code == 0
    assert "replaced, as .env.previous still has it: WORKER_BROKER_URL, CELERY_BROKER_URL\n" in made.stderr
    assert (tmp_path / ".env.previous").read_text() == before
    assert stat.S_IMODE((tmp_path / ".env.previous").stat().st_mode) == 0o600
    found = dotenv_values(path)
    assert ("CELERY_BROKER_URL" in found, found["MINE"]) == (False, "1")
    assert "old-password" not in made.output + str(found)


@pytest.mark.parametrize("name", ["docker-compose.yml", "compose.yml", "compose.override.yaml"])
def test_a_project_of_docker_compose_is_not_taken_over(tmp_path: Path, name: str) -> None:
    """Compose would read `compose.yaml` in its place, and start its servers with new passwords and volumes."""
    (tmp_path / name).write_text("services: {}\n")
    for force in ([], ["--force"]):
        made = init(tmp_path, "--broker", "redis", *force)
        assert (made.exit_code, made.stdout) == (2, "")
        assert name in made.stderr
    assert {name: "services: {}\n"} == contents(tmp_path)


def test_an_empty_dotenv_is_none(tmp_path: Path) -> None:
    (tmp_path / ".env").touch()
    made = init(tmp_path, "--rollout", "friday", "--force")
    assert made.exit_code == 2
    assert "Missing option '--broker'" in made.stderr


@pytest.mark.parametrize("there", WRITTEN)
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("mine")
    made = init(tmp_path, "--broker", "redis")
    assert made.exit_code == 2
    assert f"  {tmp_path / there}\n" in made.stderr
    assert "--force" in made.stderr
    assert not made.stdout
    assert {there: "mine"} == contents(tmp_path)


def test_all_files_in_the_way_are_named_at_once(tmp_path: Path) -> None:
    made = init(Deployment(tmp_path, "redis").directory, "--broker", "redis")
    assert all(name in made.stderr for name in WRITTEN)
    assert made.stderr.count("error: ") == 1


def test_a_link_that_leads_nowhere_is_in_the_way_too(tmp_path: Path) -> None:
    (tmp_path / ".env").symlink_to(tmp_path / "secrets")
    assert init(tmp_path, "--broker", "redis").exit_code == 2
    assert not (tmp_path / "secrets").exists()


def test_force_keeps_credentials_and_what_others_put_there(tmp_path: Path) -> None:
    made = Deployment(tmp_path, "redis")
    before = made.variables
    made.rewrite(SECRET_KEY="'a b'", REMAP_SIGTERM="SIGQUIT", WORKER_HEARTBEAT="20")
    (made.directory / "compose.yaml").write_text("mine")
    forced = init(made.directory, "--broker", "rabbitmq", "--force")
    after = made.variables
    assert forced.exit_code == 0
    assert all(before[name] == after[name] for name in CREDENTIALS)
    assert f"amqp://worker:{before['RABBITMQ_PASSWORD']}@127.0.0.1:5672//" == after["WORKER_BROKER_URL"]
    assert tuple(after[n] for n in ("SECRET_KEY", "REMAP_SIGTERM", "WORKER_HEARTBEAT")) == ("a b", "SIGQUIT", "20")
    assert "kept from the previous .env: REDIS_PASSWORD, RABBITMQ_PASSWORD, SECRET_KEY" in forced.stderr
    assert "a b" not in forced.output
    assert (made.directory / "compose.yaml").read_text() != "mine"


def test_force_again_changes_nothing(tmp_path: Path) -> None:
    made = Deployment(tmp_path, "redis")
    made.rewrite(SECRET_KEY="x")
    init(made.directory, "--broker", "redis", "--force")
    before = contents(made.directory)
    init(made.directory, "--broker", "redis", "--force")
    assert before == contents(made.directory)


def test_a_password_that_means_something_in_an_address_is_refused(tmp_path: Path) -> None:
    made = Deployment(tmp_path, "redis")
    made.rewrite(REDIS_PASSWORD="hunter2/@s3cret")
    before = contents(made.directory)
    forced = init(made.directory, "--broker", "redis", "--force")
    assert forced.exit_code == 2
    assert "REDIS_PASSWORD" in forced.stderr
    assert "hunter2" not in forced.output
    assert before == contents(made.directory)


def test_a_dotenv_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"REDIS_PASSWORD=\xff\n")
    assert init(tmp_path, "--broker", "redis", "--force").exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == [".env"]


def test_a_missing_directory_is_one_clear_error(tmp_path: Path) -> None:
    made = init(tmp_path / "nowhere", "--broker", "redis")
    assert made.exit_code == 2
    assert f"error: the directory {tmp_path / 'nowhere'} does not exist" in made.stderr


@pytest.mark.parametrize(("name", "is_directory"), [("compose.yaml", True), ("systemd", False)])
def test_a_file_that_cannot_be_replaced_changes_nothing(tmp_path: Path, name: str, *, is_directory: bool) -> None:
    if is_directory:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).touch()
    made = init(tmp_path, "--broker", "redis", "--force")
    assert made.exit_code == 2
    assert str(tmp_path / name) in made.stderr
    assert [name] == [path.name for path in tmp_path.iterdir()]


def test_a_read_only_directory_is_one_clear_error() -> None:
    """/proc accepts no file, not even from root."""
    if not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    made = init(Path("/proc"), "--broker", "redis")
    assert made.exit_code == 2
    assert made.stderr.startswith("error: the files cannot be written to /proc: ")
    assert "Traceback" not in made.output


@pytest.mark.parametrize("name", ["a b", "shop\nX=1", "$(id)", "../shop", ""])
def test_an_application_is_a_name(tmp_path: Path, name: str) -> None:
    assert init(tmp_path, "--broker", "redis", "--app", name).exit_code == 2
    assert not contents(tmp_path)


def test_a_broker_must_be_named(tmp_path: Path) -> None:
    made = init(tmp_path)
    assert made.exit_code == 2
    assert "--broker" in made.stderr


@pytest.mark.parametrize("repository", [True, False])
@pytest.mark.parametrize(("ignored", "warned"), [("*.pyc\n", True), ("/.env\n", False)])
def test_a_dotenv_that_git_would_commit_is_a_warning(
    tmp_path: Path, ignored: str, *, warned: bool, repository: bool
) -> None:
    if repository:
        if not shutil.which("git"):
            pytest.skip("no git here")
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text(ignored)
    made = init(tmp_path, "--broker", "redis")
    assert warned == ("git does not ignore .env" in made.stderr)
    assert ignored == (tmp_path / ".gitignore").read_text()


@pytest.mark.parametrize("broker", BROKERS)
def test_the_settings_of_a_rollout_lead_to_the_other_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    assert init(tmp_path, "--broker", broker, "--rollout", "friday").exit_code == 0
    assert sorted([*WRITTEN, *OF_A_ROLLOUT]) == sorted(contents(tmp_path))
    for name in (".env", ".env.rollout"):
        for variable_name, value in dotenv_values(tmp_path / name).items():
            monkeypatch.setenv(variable_name, value or "")
    found = load()
    assert found.rollout_target
    assert {"redis", "amqp"} == {found.broker_url.scheme, found.rollout_target.scheme}
    assert found.rollout == "friday"
    assert stat.S_IMODE((tmp_path / ".env.rollout").stat().st_mode) == 0o600


def test_a_rollout_is_added_to_a_deployment_and_changes_none_of_its_files(tmp_path: Path) -> None:
    made = Deployment(tmp_path, "redis").directory
    (made / "compose.yaml").unlink()
    before = contents(made)
    assert init(made, "--rollout", "friday").exit_code == 0
    after = contents(made)
    assert before == {name: text for name, text in after.items() if name in before}
    assert sorted({*after} - {*before}) == OF_A_ROLLOUT
    again = init(made, "--rollout", "saturday")
    assert again.exit_code == 2
    assert "because these files exist" in again.stderr
    assert after == contents(made)
    assert init(made, "--rollout", "saturday", "--force").exit_code == 0
    assert before == {name: text for name, text in contents(made).items() if name in before}
    assert dotenv_values(made / ".env.rollout")["WORKER_ROLLOUT"] == "saturday"


@pytest.mark.parametrize(("broker", "target"), [("redis", "amqp"), ("rabbitmq", "redis")])
def test_the_manifests_are_of_this_rollout_and_hold_no_password(tmp_path: Path, broker: str, target: str) -> None:
    assert init(tmp_path, "--broker", broker, "--rollout", "friday", "--app", "shop.celery:app").exit_code == 0
    text = (tmp_path / "kubernetes/rollout.yaml").read_text()
    secret, *others = yaml.safe_load_all(text)
    assert secret["stringData"]["WORKER_ROLLOUT"] == "friday"
    address = secret["stringData"]["WORKER_ROLLOUT_TARGET"]
    # the space stops a process whose Secret was not filled in
    assert re.fullmatch(rf"{target}://\w*:PASSWORD@<the host>:\d+/.*", address)
    pods = [one["spec"]["template"]["spec"] for one in others]
    env = [{each["name"]: each.get("value") for each in pod["containers"][0]["env"]} for pod in pods]
    assert [one["WORKER_APP"] for one in env] == ["shop.celery:app"] * 3
    known = dotenv_values(tmp_path / ".env")
    assert not [name for name in CREDENTIALS if str(known[name]) in text]


@pytest.mark.parametrize(
    ("target", "form"),
    [
        (
            "amqp://worker:s3cret@mq1:5672/shop;amqp://worker:s3cret@mq2:5672/shop",
            "amqp://worker:PASSWORD@<the host>:5672/shop",
        ),
        ("redis://:s3cret@cache/2", "redis://:PASSWORD@<the host>/2"),
    ],
)
def test_the_manifests_hold_no_password_of_another_server_and_no_port_that_is_not_stated(
    tmp_path: Path, target: str, form: str
) -> None:
    (tmp_path / ".env").write_text(f"WORKER_BROKER_URL=redis://127.0.0.1/0\nBRIDGE_READ_URL={target}\n")
    assert init(tmp_path, "--rollout", "friday").exit_code == 0
    text = (tmp_path / "kubernetes/rollout.yaml").read_text()
    assert form == next(yaml.safe_load_all(text))["stringData"]["WORKER_ROLLOUT_TARGET"]
    assert "s3cret" not in text


def test_what_is_no_address_of_the_other_broker_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("BRIDGE_READ_URL=amqp://worker:s3cret@mq:port/shop\n")
    made = init(tmp_path, "--rollout", "friday")
    assert made.exit_code == 2
    assert "error: BRIDGE_READ_URL in .env" in made.stderr
    assert "s3cret" not in made.stderr
    assert not (tmp_path / ".env.rollout").exists()


def test_a_rollout_needs_the_address_of_the_other_broker(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("WORKER_BROKER_URL=redis://127.0.0.1/0\n")
    made = init(tmp_path, "--rollout", "friday")
    assert made.exit_code == 2
    assert "BRIDGE_READ_URL" in made.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".env"]


@pytest.mark.parametrize("name", ["a b", "$(id)", "x\nY=1", "../x"])
def test_a_rollout_s_name_is_a_word(tmp_path: Path, name: str) -> None:
    assert init(tmp_path, "--broker", "redis", "--rollout", name).exit_code == 2
    assert not contents(tmp_path)


def test_supervisord_has_every_variable_that_a_rollout_s_file_reads(tmp_path: Path) -> None:
    init(tmp_path, "--broker", "redis", "--rollout", "friday")
    text = (tmp_path / "supervisord.rollout.conf").read_text()
    known = {**dotenv_values(tmp_path / ".env"), **dotenv_values(tmp_path / ".env.rollout")}
    assert {*re.findall(r"%\(ENV_([A-Z_]+)\)s", text)} <= {*known}
    assert {*re.findall(r"\$(ROLLOUT_[A-Z]+|WORKER_[A-Z_]+)", text)} <= {*known}
