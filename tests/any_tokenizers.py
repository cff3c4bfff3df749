"""Tokenizers of every kind, trained with the libraries they belong to on a little text. Each is made once."""

import io
import json
from functools import cache

import tokenizers as library
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from golden import golden_texts
from tokenfeed.text.tokenizer.byte_pairs import _SEQUENCES
from tokenfeed.text.tokenizer.vocabulary import PATTERNS

SPECIAL = ["<unk>", "<s>", "</s>", "[MASK]"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def texts():
    return [text[:2000] for text in golden_texts()[:60]] + [
        "Größe 12345 naïve €5 😀 日本語 don't",
        "  two  spaces\n\n\tx",
    ]


def _trained(model, trainer, /, **parts):
    made = library.Tokenizer(model)
    for name, part in parts.items():
        setattr(made, name, part)
    made.train_from_iterator(texts(), trainer)
    return made


def _bpe(**options):
    return trainers.BpeTrainer(**{"vocab_size": 900, "special_tokens": SPECIAL, "show_progress": False, **options})


def _llama():
    """As Llama 2, Gemma and Mistral 7B: no pre-tokenizer, spaces are ▁, unknown characters become bytes.

    Trained with words split, then without, as when such a tokenizer is converted from SentencePiece.
    """
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    split = pre_tokenizers.Split("▁", "merged_with_next")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    trainer = _bpe(special_tokens=SPECIAL + _BYTES, limit_alphabet=60)
    made = _trained(model, trainer, normalizer=spaces, pre_tokenizer=split, decoder=decoders.Sequence(steps))
    fields = json.loads(made.to_str())
    fields["pre_tokenizer"] = None
    fields["added_tokens"] = fields["added_tokens"][: len(SPECIAL)]  # bytes are ordinary tokens
    merges = fields["model"]["merges"]
    merges.insert(0, ["s", ">"])  # as in files converted from a vocabulary: a way to write a special token
    merges.insert(1, ["<", "s>"])
    vocab = fields["model"]["vocab"]
    for text in ("<", ">", "s>"):
        vocab.setdefault(text, len(vocab))
    return library.Tokenizer.from_str(json.dumps(fields))


def _t5():
    """As T5 and XLM-R: Unigram, normalised, with special tokens among its words."""
    steps = [normalizers.NFKC(), normalizers.Replace(library.Regex(" {2,}"), " ")]
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    space = pre_tokenizers.Metaspace()
    around = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    parts = {"normalizer": normalizers.Sequence(steps), "pre_tokenizer": space, "decoder": decoders.Metaspace()}
    return _trained(models.Unigram(), trainer, **parts, post_processor=around)


def _plain_unigram():
    """Unigram that changes nothing, but for the space before a text, and falls back to bytes."""
    trainer = trainers.UnigramTrainer(
        vocab_size=700, special_tokens=SPECIAL + _BYTES, unk_token="<unk>", show_progress=False
    )
    made = _trained(models.Unigram(), trainer, pre_tokenizer=pre_tokenizers.Metaspace())
    fields = json.loads(made.to_str())
    fields["model"]["byte_fallback"] = True
    fields["added_tokens"] = fields["added_tokens"][: len(SPECIAL)]
    steps = [decoders.ByteFallback(), decoders.Metaspace()]
    made = library.Tokenizer.from_str(json.dumps(fields))
    made.decoder = decoders.Sequence(steps)
    return made


def _bert():
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    parts = {"normalizer": normalizers.BertNormalizer(), "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}
    return _trained(models.WordPiece(unk_token="<unk>"), trainer, **parts, decoder=decoders.WordPiece())


def _words():
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    return _trained(models.WordLevel(unk_token="<unk>"), trainer, pre_tokenizer=pre_tokenizers.WhitespaceSplit())


def _digits():
    """As Llama 3's relatives that write every digit alone (StarCoder, SmolLM)."""
    steps = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    sequence = pre_tokenizers.Sequence(steps)
    return _trained(
        models.BPE(), _bpe(initial_alphabet=_ALPHABET), pre_tokenizer=sequence, decoder=decoders.ByteLevel()
    )


def _neox():
    """As GPT-NeoX and Phi: a normalizer, and runs of spaces as added tokens that are not special."""
    parts = {"normalizer": normalizers.NFC(), "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)}
    made = _trained(models.BPE(), _bpe(initial_alphabet=_ALPHABET), **parts, decoder=decoders.ByteLevel())
    made.add_tokens([library.AddedToken(" " * count, normalized=True) for count in (4, 3, 2)])
    made.add_special_tokens(["<|late|>"])
    made.add_tokens(["<|tool|>"])
    return made


def _roberta():
    """With a space before every text; it would pad, cut, and put special tokens around."""
    around = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    parts = {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True), "decoder": decoders.ByteLevel()}
    made = _trained(models.BPE(), _bpe(initial_alphabet=_ALPHABET), **parts, post_processor=around)
    made.enable_truncation(8)
    made.enable_padding(length=16)
    return made


def _clip():
    steps = [normalizers.NFC(), normalizers.Replace(library.Regex(r"\s+"), " "), normalizers.Lowercase()]
    model = models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    parts = {"normalizer": normalizers.Sequence(steps), "pre_tokenizer": pre_tokenizers.Whitespace()}
    return _trained(model, _bpe(end_of_word_suffix="</w>"), **parts, decoder=decoders.BPEDecoder())


def _gpt2():
    """Plain byte-level BPE: for the fast engines."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _trained(models.BPE(), _bpe(initial_alphabet=_ALPHABET), pre_tokenizer=split, decoder=decoders.ByteLevel())


def _qwen():
    """As Qwen 2: NFC, its own pattern, and added tokens of which some are not special."""
    split = pre_tokenizers.Split(library.Regex(PATTERNS["qwen2"]), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    parts = {"normalizer": normalizers.NFC(), "pre_tokenizer": pre_tokenizers.Sequence([split, byte_level])}
    made = _trained(models.BPE(), _bpe(initial_alphabet=_ALPHABET), **parts, decoder=decoders.ByteLevel())
    made.add_tokens([library.AddedToken("<|tool|>", normalized=False)])
    return made


def _deepseek():
    steps = [pre_tokenizers.Split(library.Regex(regex), "isolated") for regex in next(iter(_SEQUENCES))]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    parts = {"pre_tokenizer": pre_tokenizers.Sequence(steps), "decoder": decoders.ByteLevel()}
    return _trained(models.BPE(), _bpe(initial_alphabet=_ALPHABET), **parts)


_KINDS = {
    "qwen": _qwen,
    "deepseek": _deepseek,
    "llama": _llama,
    "t5": _t5,
    "plain_unigram": _plain_unigram,
    "bert": _bert,
    "words": _words,
    "digits": _digits,
    "neox": _neox,
    "roberta": _roberta,
    "clip": _clip,
    "gpt2": _gpt2,
}
KINDS = sorted(_KINDS)
FAST = {"gpt2": "tokenfeed", "deepseek": "tokenfeed", "qwen": "tokenfeed+tokenizers", "neox": "tokenfeed+tokenizers"}
"""Those that run on our own engine, or mostly."""
KEEP_TEXT = {"deepseek", "llama", "plain_unigram", "digits", "roberta", "gpt2"}
"""Those that change no text, but for a space that they put before it."""


@cache
def make(kind):
    """The tokenizer of that kind as its library has it."""
    return _KINDS[kind]()


def write(kind, folder, **config):
    """Write it as Hugging Face keeps tokenizers."""
    folder.mkdir(parents=True, exist_ok=True)
    make(kind).save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, **config}))
    return folder


@cache
def sentencepiece_model(kind="bpe", rule="identity", **options):
    """The bytes of a trained model of SentencePiece."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in texts() for line in text.splitlines() if line),
        model_writer=out,
        model_type=kind,
        normalization_rule_name=rule,
        vocab_size=700,
        minloglevel=2,
        num_threads=1,
        **{"byte_fallback": True, "remove_extra_whitespaces": rule != "identity", **options},
    )
    return out.getvalue()


WORDS = [
    "the",
    " the",
    "Größe",
    "12345",
    "don't",
    "\n\n",
    "  ",
    "    ",
    "é",
    "e\u0301",
    "ﬁ",
    "😀",
    "日本",
    "▁",
    "Ġ",
    "\x00",
]
PLAIN = st.lists(st.sampled_from([*WORDS, *texts()[0].split(" ")[:80]]) | st.text(max_size=8)).map("".join)
NAMES = [*SPECIAL, "<|late|>", "<0x41>", "</w>", "##ing", "s>", "<|tool|>"]
WITH_NAMES = st.lists(st.sampled_from([*WORDS, *NAMES, *(f" {name}" for name in NAMES)]) | st.text(max_size=4)).map(
    "".join
)
