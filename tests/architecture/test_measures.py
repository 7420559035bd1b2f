"""Figures of the code base stay within their limits. Each run prints them.

A limit is the figure of the last change, so that none grows again. ``python -m
tests.architecture.measures`` lists the places; ``python -m benchmarks.structure`` stores the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sized

import pytest

from tests.architecture import measures, words

#: Modules with exactly one importer, those that a registry imports aside. 60 before the containment
#: of hostile code, whose mechanisms (filter, user ids, disk guard, proxy) are modules of one driver; 72
#: before living environments, whose mechanisms (init, layers, sessions, files, door) are likewise; 105 before
#: rollouts, 135 before their pages, 142 before fleets and their placement, 150
#: before their router, keeper and page, 175 before the dispatcher and the selector, 190 before the console's
#: problems, explorer and comparisons, whose language, conditions and statistics are modules of one page, 205 before
#: views that webhooks watch and lists of the API in the explorer's orders, 207 before submissions of pages, heatmaps from
#: rollups and saved views in the client, 211 before critical paths, steady counts and calibrations,
#: 215 before short calls of the client, 216 before the socket of the leader's machine, 217 before launchers of node workers, 218 before entries that
#: consumers share, 219 before launchers of five engines and the keeper of node groups, 226 before elastic groups, whose
#: estimate, starts and demands are modules of one part, the doctor of clusters, the grants of Redis users and the collector of reports,
#: 238 before join tokens, the object store, whose address, sweep and routes are modules of one part, and clients of several gateways,
#: 247 before moves of environments and replicas that confirm what is accepted.
SINGLE_IMPORTERS = 250
#: The aim of each is 0.
CYCLES = 0
DUPLICATE_CLASSES = 0
WORDS_FOUND = 0
#: 62,600 before the containment of hostile code and callers, 72,000 before living environments
#: (a kept namespace, sessions, layers and forks, files, ports and live output are parts of their own), 100,000
#: before doors for the protocols of ten clients, 110,000 before rollouts as a service, 135,000 before their tasks, tools,
#: doors and pages, 145,000 before fleets and the placement of trajectories,
#: 155,000 before the router of generations and the keeper and the page of fleets,
#: 165,000 before the dispatcher of batches and the selector of parallelism,
#: 180,000 before the console's problems, explorer, comparisons and effects of verbs, 186,000 before signs of life of web
#: processes, slow command families, requests that are submitted again, views by the API and figures of cards, 190,000 before
#: readers of other systems' traces, 192,000 before policies of the step and counts of GPU calls, 194,000 before
#: predicted replays, 195,000 before bounds and shadow pools, the page of the evaluation and short calls of the client,
#: 197,000 before the socket of the leader's machine, several web processes, batches of rows,
#: launchers of node workers for five engines and the keeper of their groups, 203,000 before elastic groups, the
#: doctor of clusters and users of Redis, 206,000 before join tokens and the revocation of nodes, the replacement of outdated nodes,
#: the object store and clients of several gateways, 209,500 before moves of idle environments, trees, results and images by the object
#: store, replicas that confirm, and elastic groups of several shapes, 214,500 before moves of containers
#: and for waiting actions, standbys that follow the journal, and confirmed verbs.
PRODUCT_LINES = 216_500

Figure = Callable[[str, int], None]


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Have a figure printed at the end of the run."""
    return lambda name, value: record_property("figure", f"{name} {value}")


def at_most(limit: int, found: Sized, name: str, figure: Figure) -> None:
    """Print the number of what was found, and list it when it is above the limit."""
    figure(name, len(found))
    assert len(found) <= limit, found


def test_imports_form_no_cycle(figure: Figure):
    at_most(CYCLES, measures.cycles(), "import cycles", figure)


def test_few_modules_exist_for_one_importer(figure: Figure):
    at_most(SINGLE_IMPORTERS, measures.single_importers(), "modules with one importer", figure)


def test_no_two_classes_share_a_name(figure: Figure):
    at_most(DUPLICATE_CLASSES, measures.duplicate_classes(), "duplicate class names", figure)


def test_text_names_its_subjects(figure: Figure):
    at_most(WORDS_FOUND, words.found(), "avoided words", figure)


def test_the_product_does_not_grow(figure: Figure):
    lines = measures.product_lines()

    figure("product lines", lines)
    assert lines <= PRODUCT_LINES
