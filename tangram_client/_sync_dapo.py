"""Efficient DAPO, blocking. Generated from `_async_dapo`: change that one.

``python -m tests.architecture.sync_client`` writes this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, Self
from uuid import uuid4

from tangram_client._dapo_groups import (
    NOT_NEEDED,
    Carry,
    DapoCounts,
    GroupBook,
    GroupRules,
    GroupVerdict,
    Informative,
    OnErrors,
    PromptGroup,
    PromptOrder,
    differ,
)
from tangram_client._rollout_calls import RolloutInfo
from tangram_client._sync_rollouts import BackendCalls, RolloutCalls
from tangram_client.retry import RetryPolicy

#: One look at the log of completions lasts at most so long.
LOOK_SECONDS = 30.0
#: A trainer waits so long for a server that starts again.
PATIENT = RetryPolicy(attempts=10_000, total_seconds=600.0)
#: Rollouts of one page of completions, and of one acknowledgement.
PAGE = 256
ACKNOWLEDGED = 1000


class RolloutClient(Protocol):
    """What DAPO needs of a client."""

    @property
    def rollouts(self) -> RolloutCalls: ...

    @property
    def backends(self) -> BackendCalls: ...


class Dapo:
    """Batches of informative groups, without an idle rollout worker between them (`tangram_client.dapo`).

    ``prompts``: informative groups of a batch; ``samples``: rollouts of a group; ``at_once``: rollouts that are submitted and not
    finished, as many as the installation runs at once and some more [prompts × samples]. ``errors``, ``repeats``: what becomes of
    groups with failures; ``carry``: of unfinished rollouts at the end of an iteration. ``seed`` shuffles each epoch; ``epochs``: None is without
    end; ``most_prompts``: an iteration that has submitted so many prompts ends with what it has. ``run`` names the groups; ``state``
    continues a run; ``tokens``: read the tokens of a batch; ``retry``: the patience with a server that is away [10 minutes]. ``fields`` as in ``POST /rollouts`` (llm, sampling, options, limits, …).
    """

    def __init__(
        self,
        client: RolloutClient,
        task: str,
        handler: str,
        instances: Sequence[Mapping[str, Any]],
        *,
        prompts: int,
        samples: int,
        at_once: int | None = None,
        errors: OnErrors = "drop",
        repeats: int = 2,
        carry: Carry = "park",
        informative: Informative = differ,
        seed: int | None = None,
        epochs: int | None = None,
        most_prompts: int | None = None,
        run: str | None = None,
        state: Mapping[str, Any] | None = None,
        tokens: bool = True,
        retry: RetryPolicy = PATIENT,
        **fields: Any,
    ) -> None:
        if prompts < 1 or carry not in ("park", "terminate"):
            raise ValueError("give prompts of at least 1, and carry as park or terminate")
        self._backends = client.backends
        self._rollouts = client.rollouts.with_retry(retry)
        self._task = task
        self._handler = handler
        self._prompts = prompts
        self._at_once = max(at_once or prompts * samples, samples)
        self._carry = carry
        self._most_prompts = most_prompts
        self._tokens = tokens
        self._fields = fields
        self._state = state
        name = run or (state or {}).get("run") or f"dapo-{uuid4().hex[:12]}"
        rules = GroupRules(samples, errors, repeats, informative)
        self._book = GroupBook(str(name), rules, PromptOrder(instances, seed, epochs))
        if state is not None:
            self._book.restore(state)
        #: A submission whose answer is outstanding: group, number of rollouts, body, idempotency key.
        self._unsent: tuple[PromptGroup, dict[str, Any], str] | None = None
        #: Finished rollouts that train nothing: their tokens are deleted.
        self._useless: list[str] = []
        self._started = False

    @property
    def run(self) -> str:
        """Name of the run: its groups are ``RUN/POSITION``."""
        return self._book.run

    @property
    def counts(self) -> DapoCounts:
        """What became of the prompts so far."""
        return self._book.counts

    @property
    def iteration(self) -> int:
        """Batches so far."""
        return self._book.iteration

    def state(self) -> dict[str, Any]:
        """Return what another process needs to continue after the last batch: JSON, for the trainer's checkpoint."""
        return self._book.state()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[PromptGroup]:
        batch = self.batch()
        if not batch:
            raise StopIteration
        return batch

    def batch(self) -> list[PromptGroup]:
        """Return the next batch; smaller at the end of the last epoch, empty after it.

        May be called again after an error: what was submitted and read stays. Raises TangramClientError.
        """
        book = self._book
        self._begin()
        most = None if self._most_prompts is None else book.counts.prompts + self._most_prompts
        while len(book.ready) < self._prompts:
            self._submit_more(most)
            if not book.open:
                break
            self._read_page(LOOK_SECONDS)
            self._read_tokens()
        self._read_tokens()
        self._hold()
        self._forget_useless()
        return book.take(self._prompts)

    def update_weights(self, addresses: Sequence[str], **fields: Any) -> Sequence[str]:
        """Replace the servers of the run's pool: their tokens carry the next weights version. Returns their names.

        Parked rollouts sample from them from their next turn on. ``fields`` as in ``POST /backends``.
        """
        pool = self._fields.get("llm")
        if not pool:
            raise ValueError("the rollouts name no pool of servers: give llm=POOL")
        if str(pool).startswith("fleet:"):
            raise ValueError(f"{pool} has no registered servers: change the weights at its workers")
        return self._backends.replace(str(pool), addresses, **fields)

    def acknowledge(self, batch: Sequence[PromptGroup]) -> None:
        """Have the tokens of a batch deleted, once it is trained and the checkpoint is stored."""
        self._acknowledge([name for group in batch for name in group.rollouts])

    def close(self) -> None:
        """Cancel what is not finished, and have the tokens of unfinished groups deleted.

        Without it parked rollouts wait for a process that continues the run.
        """
        self._end_open()
        self._forget_useless()

    def _begin(self) -> None:
        """Start the run, or the next iteration of it."""
        book = self._book
        if not self._started:
            if self._state is None:
                book.cursor = (self._rollouts.completions("now")).next
            else:
                self._recover()
            self._started = True
        if book.parked:
            self._rollouts.resume_many(sorted(book.parked))
            book.parked.clear()

    def _recover(self) -> None:
        """Find what an earlier process submitted after its state was stored."""
        book, rollouts = self._book, self._rollouts
        for group in book.unwanted:
            self._cancel(group.pending)
            self._useless.extend(group.ended)
        book.unwanted.clear()
        more = True
        while more:
            page = rollouts.completions(book.cursor, limit=PAGE, tokens=False)
            for info in page.items:
                if book.ended(info) is None and book.is_useless(info):
                    self._useless.append(info.id)
            book.cursor, more = page.next, page.more
        for group in list(book.open.values()):
            self._adopt(group.name)
        position = book.unknown_from or 0
        while self._adopt(book.name_of(position)) or position < book.position:
            position += 1
        for group in list(book.open.values()):
            self._settle(group)
        book.parked.update(book.pending)

    def _adopt(self, group: str) -> bool:
        """Take over the unfinished rollouts of a group; return whether there are any."""
        found = self._rollouts.list(group=group, limit=ACKNOWLEDGED)
        for info in found:
            self._book.adopt(info)
        return bool(found)

    def _submit_more(self, most: int | None) -> None:
        """Submit prompts until so many rollouts are live that no worker waits for the next one."""
        book = self._book
        self._send()
        for group in list(book.open.values()):
            if not group.rollouts:  # an earlier process did not come to submit it
                self._submit(group, group.samples)
            if book.rules.verdict(group) is GroupVerdict.SHORT:
                book.counts.repeats += group.missing
                self._submit(group, group.missing)
        samples = book.rules.samples
        while len(book.pending) + samples <= self._at_once:
            if most is not None and book.counts.prompts >= most:
                return
            new = book.make(book.position)
            if new is None:
                return
            self._submit(new, samples)

    def _submit(self, group: PromptGroup, number: int) -> None:
        book = self._book
        dapo = {
            "run": book.run, "position": group.position, "iteration": book.iteration, **asdict(book.counts),
        }  # fmt: skip
        metadata = {**(self._fields.get("metadata") or {}), "dapo": dapo}
        body = {
            **self._fields, "instances": [group.instance], "samples": number, "group": group.name,
            "metadata": metadata,
        }  # fmt: skip
        self._unsent = group, body, uuid4().hex
        self._send()

    def _send(self) -> None:
        """Send the outstanding submission; repeated after an error, it is the same request."""
        if self._unsent is None:
            return
        group, body, key = self._unsent
        made = self._rollouts.submit(self._task, self._handler, idempotency_key=key, **body)
        self._book.add(group, made)
        self._unsent = None

    def _read_page(self, wait_seconds: float) -> None:
        """Read what has finished since the last look, of any rollout of the project."""
        book = self._book
        page = self._rollouts.completions(
            book.cursor, limit=PAGE, wait_seconds=wait_seconds, tokens=False
        )
        for info in page.items:
            group = book.ended(info)
            if group is not None:
                self._settle(group)
            elif book.is_useless(info):
                self._useless.append(info.id)
        book.cursor = page.next
        self._forget_useless()

    def _settle(self, group: PromptGroup) -> None:
        verdict = self._book.settle(group)
        if verdict is GroupVerdict.DROPPED:
            self._cancel(group.pending)
        if verdict in (GroupVerdict.DROPPED, GroupVerdict.WASTED):
            self._useless.extend(group.ended)

    def _cancel(self, rollouts: Sequence[str]) -> None:
        if rollouts:
            self._rollouts.cancel_many(rollouts, reason=NOT_NEEDED)

    def _read_tokens(self) -> None:
        """Read the tokens of the ready groups; one that has none any more is dropped."""
        for group in [group for group in self._book.ready if not group.read]:
            for info in group.rewarded if self._tokens else ():
                group.rollouts[info.id] = self._full(info)
            group.read = True
            if self._tokens and any(info.segments is None for info in group.rewarded):
                self._book.reject(group)
                self._useless.extend(group.ended)

    def _full(self, info: RolloutInfo) -> RolloutInfo:
        if info.segments is not None:
            return info
        return self._rollouts.get(info.id)

    def _hold(self) -> None:
        """Let nothing of the run work while the trainer does."""
        book = self._book
        unfinished = book.pending
        if self._carry == "park":
            book.parked.update(unfinished)
            book.counts.carried += len(unfinished)
            if unfinished:
                self._rollouts.park_many(unfinished)
            return
        self._end_open()
        book.counts.terminated += len(unfinished)

    def _end_open(self) -> None:
        """Cancel what is not finished, and leave its groups out."""
        book = self._book
        self._cancel(book.pending)
        for group in list(book.open.values()):
            self._useless.extend(group.ended)
            book.close(group)

    def _acknowledge(self, rollouts: Sequence[str]) -> None:
        for first in range(0, len(rollouts), ACKNOWLEDGED):
            self._rollouts.acknowledge(rollouts[first : first + ACKNOWLEDGED])

    def _forget_useless(self) -> None:
        useless, self._useless = self._useless, []
        self._acknowledge(useless)
