"""Serve a modelled engine over HTTP.

python -m managers.llm.fake --port 8000 --dialect vllm --model 14B --degree 1 --slots 100 --speed 20
"""

from __future__ import annotations

import click
import uvicorn

from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_server import DIALECTS, Behaviour, EngineServer
from managers.llm.fake.engine_spec import MODELLED
from managers.llm.fake.paced_engine import PacedEngine


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True)
@click.option("--dialect", type=click.Choice(DIALECTS), default="vllm", show_default=True)
@click.option("--model", type=click.Choice(list(MODELLED)), default="14B", show_default=True)
@click.option("--degree", type=click.Choice(["1", "2", "4", "8"]), default="1", show_default=True)
@click.option("--slots", default=100, show_default=True, help="Generations at once.")
@click.option("--speed", default=1.0, show_default=True, help="Virtual seconds in a real one.")
@click.option(
    "--priorities",
    type=click.Choice(["lower", "greater", "ignored", "refused"]),
    default="lower",
    show_default=True,
    help="Which priority is served first, or what becomes of one.",
)
def main(
    host: str, port: int, dialect: str, model: str, degree: str, slots: int, speed: float,
    priorities: str,
) -> None:  # fmt: skip
    """Serve until the process is ended."""
    engine = PacedEngine(EngineModel(MODELLED[model], int(degree), slots), speed)
    server = EngineServer(engine, Behaviour(dialect, model, priorities=priorities))
    uvicorn.run(server, host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main()
