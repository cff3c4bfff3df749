"""What tests of chat templates share: the templates, tokenizers with all their special tokens, and conversations."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "chat"
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
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
    """A tokenizer of Hugging Face: byte-level, which our own engine runs; with words that are added tokens, and NFC; or
    after SentencePiece, with special tokens that swallow the white space after them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    texts = ["Hello there, how are you today?", "system user assistant model", "naïve straße 語 <think> </think>"] * 5
    if kind == "sentencepiece":
        made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        initial = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", *initial], show_progress=False)
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    if kind == "sentencepiece":  # the trainer lists bytes as added tokens; in models they are words alone
        definition = json.loads(made.to_str())
        definition["added_tokens"] = [one for one in definition["added_tokens"] if one["content"] == "<unk>"]
        made = Tokenizer.from_str(json.dumps(definition))
    if kind == "added":
        made.normalizer = normalizers.NFC()
        made.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>", "<tool_call>")])
    strips = kind == "sentencepiece"
    made.add_special_tokens(
        [AddedToken(name, special=True, normalized=False, rstrip=strips and "|" in name) for name in special_names()]
    )
    return made


def save_model(folder, kind, template=None):
    """A folder as that of a model. Returns the tokenizer of transformers that it opens as."""
    from transformers import PreTrainedTokenizerFast

    whole = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(kind), bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    if template is not None:
        whole.chat_template = template
    whole.save_pretrained(folder)
    return whole


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
