"""A trainer names tokenizers below the allowed folders, and reads nothing else by a name."""

from __future__ import annotations

import os
import shutil

import pytest

from domain.errors import NotFound
from examples.rollouts.scripted_llm import TOKENIZER
from rollout.tokens.tokenizer_folders import TokenizerFolders


@pytest.fixture
def models(tmp_path):
    """A folder with one model, beside a folder that is not allowed."""
    for place in ("models/organisation/model", "secret/model"):
        shutil.copytree(TOKENIZER, tmp_path / place)
    return tmp_path / "models"


def test_a_model_is_found_by_its_name_and_by_its_path(models):
    folders = TokenizerFolders([models])

    found = folders.get("organisation/model")

    assert found.encode("<|im_end|>") == [2]
    assert folders.get(str(models / "organisation" / "model")) is found
    assert folders.names() == ["organisation/model"]


@pytest.mark.parametrize(
    "name",
    ["model", "../secret/model", "organisation", "", "organisation/model\0", "/etc", "~/model"],
)
def test_no_other_folder_is_read_by_any_name(models, name):
    with pytest.raises(NotFound, match=r"there are organisation/model$"):
        TokenizerFolders([models]).get(name)


def test_a_link_out_of_the_allowed_folder_is_not_followed(models):
    (models / "link").symlink_to(models.parent / "secret" / "model")

    folders = TokenizerFolders([models])
    with pytest.raises(NotFound):
        folders.get("link")
    assert folders.names() == ["organisation/model"]


def test_a_tokenizer_that_changed_is_read_again(models):
    folders = TokenizerFolders([models])
    before = folders.get("organisation/model")
    file = models / "organisation" / "model" / "tokenizer.json"
    os.utime(file, ns=(1, 1))

    assert folders.get("organisation/model") is not before


def test_without_allowed_folders_there_is_none():
    with pytest.raises(NotFound, match="there are none"):
        TokenizerFolders([]).get("organisation/model")
