"""A recorded step as a command: busy for the recorded share of the recorded time.

Two commands, by length (after scaling):

- below 50 ms: ``sleep``. Starting it costs about 1 ms of CPU, which is near what such steps were
  recorded with (file operations, 5–15 % of 10–40 ms).
- else: a loop in plain ``sh`` that spends CPU until it is level with the share that is due, sleeps
  in pieces of at most 0.25 s, and looks again. It reads the time from ``/proc/uptime`` and its own
  CPU, children included, from ``/proc/self/stat``, both without starting a process.

Accuracy: both files count in 10 ms, so a step is right to about 10 ms in time and in CPU. The CPU
seconds are *work*: on a crowded core the step takes longer, as the recorded command would have.
A share above 100 % is spread over as many loops side by side. The node needs ``sh``, ``sleep``
with fractions and a Linux ``/proc``; nothing is installed and nothing is calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

#: Below this a step is only slept: the loop's own clock ticks in 10 ms.
SHORT_SECONDS: Final = 0.05
#: From this share of a core on, a step is given whole cores.
BURST_CORES: Final = 0.5

#: $1 hundredths of a second, $2 percent of a core for each loop, $3 loops.
BURN: Final = """\
clock() { read -r up _ </proc/uptime; now=$((${up%.*} * 100 + 1${up#*.} - 100)); }
usage() {
  read -r _ _ _ _ _ _ _ _ _ _ _ _ _ user system child_user child_system _ </proc/self/stat
  used=$((user + system + child_user + child_system))
}
burn() {
  clock; start=$now
  while :; do
    clock; usage
    passed=$((now - start)); left=$(($1 - passed)); next=$((left < 25 ? left : 25))
    [ $next -gt 0 ] || next=0
    if [ $((used * 100)) -lt $(((passed + next < $1 ? passed + next : $1) * $2)) ]; then
      i=0; while [ $i -lt 1000 ]; do i=$((i + 1)); done
    elif [ $left -le 0 ]; then
      return 0
    else
      sleep 0.$((next / 10))$((next % 10))
    fi
  done
}
loop=1
while [ $loop -lt $3 ]; do burn "$1" "$2" & loop=$((loop + 1)); done
burn "$1" "$2"; wait
"""


def burn_command(seconds: float, cpu_cores: float) -> Sequence[str]:
    """Return the command that keeps ``cpu_cores`` busy for ``seconds``."""
    if seconds < SHORT_SECONDS:
        return ["sleep", f"{seconds:.3f}"]
    loops = max(1, math.ceil(cpu_cores))
    percent = round(100 * cpu_cores / loops)
    return ["sh", "-c", BURN, "burn", str(round(seconds * 100)), str(percent), str(loops)]


def asked_seconds(seconds: float) -> float:
    """Return how long the command of `burn_command` is busy or sleeps: ``seconds`` as it writes them."""
    return round(seconds, 3) if seconds < SHORT_SECONDS else round(seconds * 100) / 100


def burnt_seconds(seconds: float, cpu_cores: float) -> float:
    """Return the CPU seconds that `burn_command` will have used, as far as they are its choice."""
    return 0.0 if seconds < SHORT_SECONDS else seconds * cpu_cores


def recorded_cost(cpu_cores: float) -> float:
    """Return the cores to ask for: whole ones for a burst, else 0.1 to 0.5 of a shared one.

    Above half a core the share is rounded up to whole cores: such a step is slowed by company. The
    rest is rounded up to tenths and shares its core with other light actions.
    """
    if cpu_cores > BURST_CORES:
        return math.ceil(round(cpu_cores, 2))
    return max(1, math.ceil(round(cpu_cores * 10, 2))) / 10
