"""Playing recorded trajectories against a Tangram, as their trainer would.

`trace` reads and resamples them, `burn` turns a recorded step into a command, `player` plays one
trajectory, `session` many at once, `report` says how it went.
"""

from __future__ import annotations
