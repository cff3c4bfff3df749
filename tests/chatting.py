"""What tests of chat templates share: the templates, tokenizers with all their special tokens, and conversations."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "chat"
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
WORDS = ["Hello", "there", "How", "are", "you", "user", "assistant", "system", "model", "think", "today", "name"]
_TAGS = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
_NAMES = re.compile(r"<\|\w+\|>|<｜[\w▁]+｜>|</?\w+_of_turn>|\[/?INST\]")


def tagged(name):
    """A template with generation tags."""
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def plain(name):
    """The same without."""
    return _TAGS.sub("", tagged(name))


def special_names():
    found = {name for template in TEMPLATES for name in _NAMES.findall(tagged(template))}
    return sorted(found | {"<s>", "</s>", "<|endoftext|>"})


def make_tokenizer(kind):
    """A tokenizer of Hugging Face: byte-level, which our own engine runs, with special tokens that swallow white space
    ("strips") or not; with words that are added tokens, and NFC; or after SentencePiece."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if kind == "sentencepiece":
        tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127))]
        tokens, merges = add_merges(tokens, [f"▁{word}" for word in WORDS] + WORDS)
        vocabulary = {token: number for number, token in enumerate(tokens)}
        made = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        tokens, merges = add_merges(sorted(pre_tokenizers.ByteLevel.alphabet()), [f"Ġ{word}" for word in WORDS] + WORDS)
        made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    if kind == "added":
        made.normalizer = normalizers.NFC()
        made.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>", "<tool_call>")])
    left, right = kind == "strips", kind in ("strips", "sentencepiece")
    flags = {name: {"lstrip": left and "|" in name, "rstrip": right and "|" in name} for name in special_names()}
    made.add_special_tokens([AddedToken(name, special=True, normalized=False, **flags[name]) for name in flags])
    return made


def add_merges(tokens, words):
    """Tokens and merges by which each word is one token: its first characters are joined first."""
    tokens, merges = list(tokens), []
    for word in words:
        for stop in range(2, len(word) + 1):
            if word[:stop] not in tokens:
                tokens.append(word[:stop])
                merges.append((word[: stop - 1], word[stop - 1]))
    return tokens, merges


def save_model(folder, kind, template=None):
    """A folder as that of a model."""
    folder.mkdir(exist_ok=True)
    make_tokenizer(kind).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    config |= {"clean_up_tokenization_spaces": False} | ({} if template is None else {"chat_template": template})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def said(role, content, **more):
    return {"role": role, "content": content, **more}


TURNS = [
    said("user", "Hello there!"),
    said("assistant", "How are you?"),
    said("user", " naïve 語 \n"),
    said("assistant", " straße, today.\n\n"),
]
CONVERSATIONS = {
    "two turns": TURNS[:2],
    "four turns": TURNS,
    "system": [said("system", "Be brief."), *TURNS],
    "thinking": [
        TURNS[0],
        said("assistant", "<think>\nwhy\n</think>\n\nYes."),
        TURNS[2],
        said("assistant", "<think>\nwhat\n</think>\n\n<b>No"),
    ],
    "markup": [TURNS[0], said("assistant", "<b>"), said("user", "<"), said("assistant", "|> 0 1")],
}


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
CALLED = [
    TURNS[0],
    said("assistant", "", tool_calls=[CALL, CALL]),
    said("tool", "2"),
    said("tool", "3"),
    TURNS[1],
]
