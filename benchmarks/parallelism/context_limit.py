"""Figure 1 of EARL in small: one run with a hard context limit, one whose limit the selector lifts.

The agent plays tic-tac-toe, and thinks before each move. Its thinking is Monte Carlo: so many playouts, each counted as `TOKENS` tokens, so that
more thinking really wins more games. The policy is the mean length of its thinking; REINFORCE with the mean of a batch as baseline changes it by the
games' returns. No language model is trained: **games, returns and gradients are real, tokens are counted and not sampled**.

A turn that would pass the context limit of its episode is truncated: the agent has no move, and the game is lost, as an answer that was cut off is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import mean
from typing import Final, NamedTuple

from benchmarks.parallelism.growing import World
from domain.selectors import Parallelism, StageLoad
from scheduler.core.residency.parallelism import ParallelismStanding, choose

#: Tokens of one playout, and of a board.
TOKENS: Final = 4
BOARD_TOKENS: Final = 16
EPISODES: Final = 64
STEPS: Final = 40
#: Playouts of the opponent's move.
_OPPONENT: Final = 6
_SPREAD: Final = 0.35
_RATE: Final = 0.6
_BEGIN: Final = 2.0
_LINES: Final = (
    (0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6),
)  # fmt: skip


class Episode(NamedTuple):
    """One game."""

    reward: float
    #: Tokens of each turn.
    turns: Sequence[int]
    truncated: bool
    #: Deviations of the drawn lengths, in standard deviations.
    deviations: Sequence[float]

    @property
    def context(self) -> int:
        """Tokens of the whole episode."""
        return sum(self.turns)


class TrainingStep(NamedTuple):
    """What a step of a run shows."""

    turn_context: float
    episode_context: float
    truncated: float
    reward: float
    limit: int
    degree: str


def winner(board: Sequence[int]) -> int:
    """Return 1 or -1, 0 for neither."""
    for a, b, c in _LINES:
        if board[a] and board[a] == board[b] == board[c]:
            return board[a]
    return 0


def thought(board: list[int], player: int, playouts: int, chance: Random) -> int:
    """Return the move that won most of so many random games; without any, a random move."""
    moves = [n for n in range(9) if not board[n]]
    scores = dict.fromkeys(moves, 0.0)
    for n in range(playouts):
        move = moves[n % len(moves)]
        scores[move] += player * _played_out(board, move, player, chance)
    most = max(scores.values())
    return chance.choice([move for move in moves if scores[move] == most])


def _played_out(board: list[int], move: int, player: int, chance: Random) -> int:
    copy = board[:]
    copy[move] = player
    left = [n for n in range(9) if not copy[n]]
    chance.shuffle(left)
    for place in left:
        if found := winner(copy):
            return found
        player = -player
        copy[place] = player
    return winner(copy)


def play(length: float, limit: int, chance: Random) -> Episode:
    """Play one game; ``length``: logarithm of the mean playouts of a turn."""
    board = [0] * 9
    turns: list[int] = []
    deviations: list[float] = []
    player = chance.choice((1, -1))
    while not winner(board) and 0 in board:
        if player == 1:
            deviation = chance.gauss(0.0, 1.0)
            playouts = max(1, round(math.exp(length + _SPREAD * deviation)))
            tokens = BOARD_TOKENS + TOKENS * playouts
            deviations.append(deviation)
            room = limit - sum(turns)
            if tokens > room:
                return Episode(0.0, [*turns, max(0, room)], True, deviations)
            turns.append(tokens)
            board[thought(board, 1, playouts, chance)] = 1
        else:
            board[thought(board, -1, _OPPONENT, chance)] = -1
        player = -player
    return Episode({1: 1.0, 0: 0.5, -1: 0.0}[winner(board)], turns, False, deviations)


def trained(
    world: World, *, selects: bool, seed: int, steps: int = STEPS, responses: int = EPISODES
) -> list[TrainingStep]:
    """Return a run; its limit is the longest context that the degree in force survives.

    selects: the selector chooses that degree before each step; else it stays the declared first one.
    """
    chance, length, found = Random(seed), _BEGIN, []
    standing, degree = ParallelismStanding(), world.spec.degrees[0]
    load = StageLoad(3.0 * (BOARD_TOKENS + TOKENS * math.exp(length)), responses=responses)
    for _ in range(steps):
        if selects:
            choice = choose(world.spec, world.table, load, standing)
            standing, degree = choice.standing, choice.parallelism or degree
        limit = longest(world, degree, responses)
        episodes = [play(length, limit, chance) for _ in range(EPISODES)]
        rewards = [each.reward for each in episodes]
        baseline = mean(rewards)
        gradient = mean(
            (each.reward - baseline) * sum(each.deviations) / _SPREAD for each in episodes
        )
        contexts = [each.context for each in episodes]
        found.append(
            TrainingStep(
                mean(turn for each in episodes for turn in each.turns) if any(contexts) else 0.0,
                mean(contexts), mean(each.truncated for each in episodes), baseline,
                limit, str(degree),
            )
        )  # fmt: skip
        length = min(12.0, max(0.0, length + _RATE * gradient))
        load = StageLoad(
            max(1.0, mean(contexts)), context_longest=max(contexts), responses=responses
        )
    return found


def longest(world: World, degree: Parallelism, responses: int) -> int:
    """Return the longest context that a degree is known to survive."""
    low, high = 1, 2**20
    while low < high:
        middle = (low + high + 1) // 2
        if world.table.survives(degree, middle, responses):
            low = middle
        else:
            high = middle - 1
    return low
