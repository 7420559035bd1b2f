"""The code base keeps its figures: cycles, single importers, class names, words."""

from __future__ import annotations

from tests.architecture import measures, words

#: Modules with exactly one importer, those that a registry imports aside. It only ever gets smaller.
SINGLE_IMPORTERS = 145
#: As above: the target of each is none.
CYCLES = 5
DUPLICATE_CLASSES = 59
WORDS_FOUND = 1075


def test_imports_form_no_cycle():
    assert len(measures.cycles()) <= CYCLES, measures.cycles()


def test_few_modules_exist_for_one_importer():
    found = measures.single_importers()

    assert len(found) <= SINGLE_IMPORTERS, found


def test_no_two_classes_share_a_name():
    found = measures.duplicate_classes()

    assert len(found) <= DUPLICATE_CLASSES, found


def test_text_names_its_subjects():
    found = words.found()

    assert len(found) <= WORDS_FOUND, found
