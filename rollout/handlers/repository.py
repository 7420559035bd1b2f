"""Repositories of instances: how they are prepared, how an agent's patch is read, and how it is applied for the tests.

| step | in the environment of | does |
|---|---|---|
| `prepare_repository` | INIT | files, checkout, setup; one commit that has everything |
| `read_patch` | RUN | the difference to that commit, and the changed files |
| `apply_patch` | EVAL | the patch on the prepared commit, without protected files |

Rules
1. The patch is all that EVAL gets of RUN. Its content is the agent's, and so is the ``git`` that made it.
2. What the agent did to its repository is its work: a repository that it destroyed, and a patch that cannot be read or applied,
   are an answer without a fix, with the reason. They are no errors.
3. Byte code and caches are no part of a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from rollout.handlers.base import CallRefused, Job
from rollout.handlers.commands import (
    CommandFailed,
    execute,
    exit_code,
    failure_of,
    has_called,
    output_of,
    script,
    store_artefact,
)
from rollout.handlers.request_members import refused
from rollout.handlers.swe_instances import SweInstance, patched_paths

#: Artefacts of RUN.
PATCH: Final = "patch"
CHANGED_FILES: Final = "changed-files.tar"
MAX_PATCH_BYTES: Final = 8 * 1024 * 1024
MAX_CHANGED_BYTES: Final = 16 * 1024 * 1024
#: In the workspace, beside the repository.
PATCH_FILE: Final = ".rollout.patch"
TEST_PATCH_FILE: Final = ".rollout-tests.patch"
_CHANGED_FILE: Final = ".rollout-files.tar"
_NOT_PATCHED: Final = "':(exclude,glob)**/__pycache__/**' ':(exclude,glob)**/*.pyc' ':(exclude,glob)**/.pytest_cache/**'"
_NO_GIT, _NO_COMMIT, _NOT_APPLIED, _NO_BASE = 60, 61, 62, 63

#: Files of tests that are mounted; more of them are written.
MAX_MOUNTED: Final = 60
_NAME: Final = "Tangram"
_ADDRESS: Final = "rollouts@localhost"
#: Settings of git that a repository cannot override, as of its command line.
GIT: Final[Mapping[str, str]] = {
    "GIT_AUTHOR_NAME": _NAME, "GIT_AUTHOR_EMAIL": _ADDRESS,
    "GIT_COMMITTER_NAME": _NAME, "GIT_COMMITTER_EMAIL": _ADDRESS,
    "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "core.hooksPath", "GIT_CONFIG_VALUE_1": "/dev/null",
    "GIT_CONFIG_KEY_2": "core.fsmonitor", "GIT_CONFIG_VALUE_2": "false",
}  # fmt: skip

_CHECK_OUT: Final = f"""
command -v git >/dev/null || exit {_NO_GIT}
mkdir -p -- "$1" && cd -- "$1" || exit 1
[ -e .git ] || git init -q || exit 1
[ -z "$2" ] || git checkout -q -f "$2" || exit {_NO_BASE}
"""
_COMMIT: Final = f"""
set -e
cd -- "$1"
git add -A -- . {_NOT_PATCHED}
if ! git rev-parse -q --verify HEAD >/dev/null || ! git diff --cached --quiet; then
    git commit -q --allow-empty --no-verify -m prepared
fi
git rev-parse HEAD
"""
_READ: Final = f"""
here=$PWD
cd -- "$1" 2>/dev/null && git cat-file -e "$2^{{commit}}" || exit {_NO_COMMIT}
rm -f -- "$(git rev-parse --git-path index.lock)"
git add -A -- . {_NOT_PATCHED} || exit {_NO_COMMIT}
changes() {{ git diff --cached --no-color --no-ext-diff --no-textconv --no-renames "$@"; }}
changes --binary "$2" | head -c "$3" >"$here/{PATCH_FILE}"
changes --name-only --diff-filter=d -z "$2" | tar -cf - --null --no-recursion -T - 2>/dev/null \\
    | head -c "$4" >"$here/{_CHANGED_FILE}"
changes --name-status "$2" | head -n 200
"""
#: Puts protected files back one by one: ``$0`` is the commit, ``$1`` the path.
_PUT_BACK: Final = (
    'if git cat-file -e "$0:$1" 2>/dev/null; then git checkout -q -f "$0" -- ":(top,literal)$1";'
    ' else git rm -q -f --cached -- ":(top,literal)$1"; rm -rf -- "$1"; folder=$(dirname -- "$1");'
    ' while [ "$folder" != . ] && rmdir -- "$folder" 2>/dev/null; do folder=$(dirname -- "$folder"); done; fi'
)
_APPLY: Final = f"""
set -e
here=$PWD base=$1
cd -- "$2"
shift 2
git update-index -q --really-refresh || :
git apply --index --whitespace=nowarn "$here/{PATCH_FILE}" || exit {_NOT_APPLIED}
list=$(mktemp)
git diff --cached --name-only --no-renames -z "$base" -- "$@" >"$list"
xargs -0 -r -n 1 sh -c '{_PUT_BACK}' "$base" <"$list"
git diff --quiet --no-ext-diff "$base" -- "$@"
tr '\\0' '\\n' <"$list"
rm -f "$list"
"""
_APPLY_TESTS: Final = f"""
here=$PWD
cd -- "$1" || exit 1
git update-index -q --really-refresh
git apply --index --whitespace=nowarn "$here/{TEST_PATCH_FILE}"
"""
_RESET: Final = 'cd -- "$2" && git reset -q --hard "$1"'


class AgentPatch(NamedTuple):
    """What an agent did to its repository."""

    size: int
    #: Why there is no patch to judge; empty: there is one.
    problem: str = ""


async def prepare_repository(job: Job, instance: SweInstance) -> str:
    """Prepare the repository; return the commit that patches are read against.

    Raises CommandFailed, CallRefused, and InvalidRequest for what the instance names and the environment lacks.
    """
    # After a crash checkout and setup are not run again: what they changed of the files stays.
    for path, text in () if has_called(job, "checkout") else instance.files.items():
        await job.put(f"{instance.directory}/{path}", text.encode())
    members = script(_CHECK_OUT, instance.directory, instance.base_commit, env=dict(GIT))
    end = await job.execute(members, name="checkout")
    if exit_code(end) == _NO_GIT:
        raise refused("environment", "image", "it has no git: patches are read with it")
    if exit_code(end) == _NO_BASE:
        raise refused("instance", "base_commit", f"cannot be checked out: {failure_of(end)}")
    if exit_code(end) != 0:
        raise refused("instance", "directory", f"cannot be used: {failure_of(end)}")
    for number, line in enumerate(instance.setup):
        text = 'cd -- "$1" && eval "$2"'
        members = script(text, instance.directory, line, env=dict(instance.variables))
        end = await job.execute(members, name=f"setup-{number}")
        if exit_code(end) != 0:
            raise refused("instance", f"setup[{number}]", failure_of(end))
    committed = script(_COMMIT, instance.directory, env=dict(GIT))
    return (await execute(job, committed, "commit", "the repository cannot be stored")).strip()


async def read_patch(job: Job, directory: str, base: str) -> AgentPatch:
    """Store the patch of the agent, and the files that it changed, as artefacts."""
    limits = (str(MAX_PATCH_BYTES + 1), str(MAX_CHANGED_BYTES + 1))
    members = script(_READ, directory, base, *limits, family="patch", env=dict(GIT))
    # It reads what is there, and removes the lock of a git that was killed.
    end = await job.execute({**members, "replay_safe": True}, name="patch")
    if exit_code(end) != 0:
        return AgentPatch(
            0, f"the agent left no repository to read a patch from: {failure_of(end)}"
        )
    try:
        patch = await job.get(PATCH_FILE)
        changed = await job.get(_CHANGED_FILE)
    except CallRefused as error:  # a background process of the agent removed it
        return AgentPatch(0, f"the patch cannot be read: {error}")
    if len(patch) > MAX_PATCH_BYTES:
        return AgentPatch(len(patch), f"the patch has more than {MAX_PATCH_BYTES} bytes")
    facts = {"base": base, "changes": output_of(end).splitlines()}
    await store_artefact(job, PATCH, patch, facts)
    if patch and len(changed) <= MAX_CHANGED_BYTES:
        await store_artefact(job, CHANGED_FILES, changed)
    return AgentPatch(len(patch))


class AppliedPatch(NamedTuple):
    """A patch on the prepared repository."""

    #: Protected files that it changed, which are as they were.
    put_back: tuple[str, ...] = ()
    #: Why it is not applied.
    problem: str = ""


async def apply_patch(job: Job, instance: SweInstance, base: str, patch: bytes) -> AppliedPatch:
    """Apply the patch in the environment of EVAL, without what it may not change. Raises CommandFailed."""
    if not patch:
        return AppliedPatch()
    await job.put(PATCH_FILE, patch)
    arguments = (base, instance.directory, *instance.pathspecs())
    members = script(_APPLY, *arguments, family="patch", env=dict(GIT))
    end = await job.execute(members, name="apply")
    if exit_code(end) == _NOT_APPLIED:
        return AppliedPatch(problem=f"the patch cannot be applied: {failure_of(end)}")
    if exit_code(end) != 0:
        raise CommandFailed(f"protected files cannot be put back: {failure_of(end)}")
    return AppliedPatch(tuple(output_of(end).splitlines()))


async def place_tests(job: Job, instance: SweInstance, *, again: bool = False) -> dict[str, str]:
    """Place the tests that the agent does not see; return those that are mounted for the command of the reward.

    ``again``: after the repository was reset. Raises InvalidRequest.
    """
    if instance.test_patch:
        await job.put(TEST_PATCH_FILE, instance.test_patch.encode())
        members = script(_APPLY_TESTS, instance.directory, family="patch", env=dict(GIT))
        end = await job.execute(members, name="tests-again" if again else "tests")
        if exit_code(end) != 0:
            paths = ", ".join(sorted(patched_paths(instance.test_patch)))
            problem = f"cannot be applied ({paths}): {failure_of(end)}"
            raise refused("instance", "test_patch", problem)
    elsewhere = instance.directory.startswith("/") and not instance.directory.startswith(
        "/workspace/"
    )
    if elsewhere or len(instance.test_files) > MAX_MOUNTED:
        for path, text in instance.test_files.items():
            await job.put(f"{instance.directory}/{path}", text.encode())
        return {}
    below = PurePosixPath(instance.directory)
    return {str(below / path): text for path, text in instance.test_files.items()}


async def reset_repository(job: Job, instance: SweInstance, base: str) -> None:
    """Take the patch back, and the tests. Raises CommandFailed."""
    members: dict[str, Any] = script(
        _RESET, base, instance.directory, family="patch", env=dict(GIT)
    )
    await execute(job, members, "reset", "the patch cannot be taken back")
