"""A checkpoint's text files, and what clients ask of them: tokenizers, templates, grammars.

Beside damage to whole examples there are documents that are right and explode: parts of the right
type, put together at random, with counts, patterns and replacements that multiply each other.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.cases import Case
from fuzz.mutate import WHOLE, Harm

COUNTS = (0, 1, 2, 3, 7, 30, 100, 999, 4096, 10**5, 10**6, 3999971, 10**9, 2**31, 10**12)
MOST_BYTES = 8 * 2**20
"""Of a request's body, which the server bounds before it reads it."""
WORDS = "the quick brown fox jumps over the lazy dog and the cat sat on the mat "
PATTERNS = (
    *("a", "[a-z]+", r"\d{1,3}", r"\s+(?!\S)", "(a|a)*$", "(a+)+b", "(.*x.*y){20}", "a{1,1000}"),
    *("((a{99}){99}){99}", "(a|b)*a(a|b){40}", "[^x]{0,5000}x", "", "(", "(?=a)b", r"\p{L}+", "^$"),
)


@cache
def tokenizer() -> Mapping[str, Any]:
    """A small tokenizer of bytes and pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator([WORDS * 3] * 9, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return json.loads(made.to_str())


def files(**more: bytes) -> dict[str, bytes]:
    """A checkpoint's folder, as far as text goes."""
    words = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATES[0]}
    held = {
        "tokenizer.json": json.dumps(tokenizer()).encode(),
        "tokenizer_config.json": json.dumps(words).encode(),
        "generation_config.json": b'{"eos_token_id": [1], "do_sample": true, "top_k": 20}',
        "config.json": b'{"eos_token_id": 1}',
    }
    return {**held, **{name.replace("_json", ".json"): data for name, data in more.items()}}


def _text(harm_of: str) -> Callable[[Random, Harm], Case]:
    def make(random: Random, harm: Harm) -> Case:
        held = files()
        name = random.choice([n for n in held if (n == "tokenizer.json") == (harm_of == n)])
        if name == "tokenizer.json" and harm is not WHOLE and random.random() < 0.6:
            held[name] = json.dumps(_parts(random)).encode()
        else:
            held[name] = harm.document(held[name])
        return Case(files=held, run=_read)

    return make


def _read(folder: Path) -> None:
    """What is done at a start, and with a training text."""
    from shardwise.runtime.text.model_text import read_model_text
    from shardwise.runtime.text.tokenizer import FromFile

    text = read_model_text(folder)
    ids = FromFile(folder / "tokenizer.json").encode((WORDS * 40 + "a" * 50).encode())
    text.decode(ids.tolist()[:200])
    _ = text.spelt_ends


# Tokenizers.


def _parts(random: Random) -> Mapping[str, Any]:
    """The tokenizer with other parts, each of a type that the library has."""
    made = dict(tokenizer())
    for place in random.sample(tuple(PLACES), random.choice((1, 1, 2, 3))):
        plural, kinds = PLACES[place]
        steps = [random.choice(kinds)(random) for _ in range(random.choice((1, 1, 2, 6, 40)))]
        made[place] = steps[0] if len(steps) == 1 else {"type": "Sequence", plural: steps}
    if random.random() < 0.3:
        made["truncation"] = {**CUT, "max_length": random.choice(COUNTS)}
    if random.random() < 0.3:
        made["padding"] = {**FILL, "strategy": {"Fixed": random.choice(COUNTS)}}
    if random.random() < 0.3:
        vocabulary = dict(made["model"]["vocab"])
        for word in random.sample(tuple(vocabulary), random.choice((1, 5, len(vocabulary)))):
            vocabulary[word] = random.choice((*COUNTS, -1, 1.5, "1"))
        made["model"] = {**made["model"], "vocab": vocabulary}
    return made


def _piece(random: Random) -> str:
    return random.choice(("a", "", " ", "ab", "e" * random.choice((1, 2, 9, 100, 10**5)), "é", "▁"))


def _replace(random: Random) -> Mapping[str, Any]:
    regex = random.random() < 0.3
    what = random.choice(PATTERNS) if regex else _piece(random)
    pattern = {"Regex" if regex else "String": what}
    return {"type": "Replace", "pattern": pattern, "content": _piece(random)}


def _around(random: Random) -> Mapping[str, Any]:
    many = random.choice((1, 3, 1000))
    token = {"id": "<s>", "ids": [0] * many, "tokens": ["<s>"] * many}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * random.choice((1, 3, 1000))
    return {
        "type": "TemplateProcessing",
        "single": [*single, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": token},
    }


def _split(random: Random) -> Mapping[str, Any]:
    behaviors = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    return {
        "type": "Split",
        "pattern": {"Regex": random.choice(PATTERNS)},
        "behavior": random.choice(behaviors),
        "invert": random.random() < 0.3,
    }


def _plain(*kinds: str) -> Callable[[Random], Mapping[str, Any]]:
    return lambda random: {"type": random.choice(kinds)}


def _strip(random: Random) -> Mapping[str, Any]:
    start, stop = random.choice(COUNTS), random.choice(COUNTS)
    return {"type": "Strip", "content": random.choice("a éx"), "start": start, "stop": stop}


CUT = {"direction": "Right", "strategy": "LongestFirst", "stride": 0}
FILL = {
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "<s>",
}
PLACES: Mapping[str, tuple[str, tuple[Callable[[Random], Mapping[str, Any]], ...]]] = {
    "normalizer": (
        "normalizers",
        (
            _replace,
            _replace,
            lambda random: {"type": "Prepend", "prepend": _piece(random)},
            _plain("NFC", "NFKD", "Lowercase", "StripAccents", "Nmt"),
        ),
    ),
    "pre_tokenizer": (
        "pretokenizers",
        (_split, _split, _plain("Whitespace", "WhitespaceSplit", "BertPreTokenizer")),
    ),
    "post_processor": ("processors", (_around,)),
    "decoder": ("decoders", (_replace, _replace, _strip, _plain("ByteFallback", "Fuse"))),
}


# Templates.

COUNTING = """{% set ns = namespace(n=0) %}
{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}
{{ ns.n }}{{ messages | tojson }}{{ strftime_now('%Y') }}"""
MACRO = """{%- macro turn(m) %}<{{ m.role }}>{{ m.content | trim }}{% endmacro %}
{% for m in messages %}{{ turn(m) }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"""
PLAIN = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
TEMPLATES = (PLAIN, COUNTING, MACRO)
VALUES = (
    *("messages", "x", "n", "x ~ x", "x * n", "n * n", "n ** n", "[x] * n", "range(n)", "{}"),
    *("'%1000000000d' | format(1)", "x | center(10 ** 9)", "x | indent(10 ** 7)", "'a' * 10 ** 9"),
    *(
        "x.replace('a', 'aaaaaaaaaa')",
        "messages | tojson(indent=10 ** 9)",
        "''.__class__",
        "9 ** (9 ** 9)",
    ),
    *(
        "range(99999) | list",
        "x.ljust(10 ** 10)",
        "(x ~ x) | upper",
        "lipsum(n=10 ** 6)",
        "self",
        "loop",
    ),
    *("namespace(a=x)", "dict(a=1)", "'{:>999999999}'.format(1)", "x | wordwrap(1)", "undefined.x"),
)


def _template(random: Random, harm: Harm) -> Case:
    whole = random.choice(TEMPLATES)
    if harm is WHOLE:
        text = whole.encode()
    elif random.random() < 0.7:
        body = _block(random, random.choice((1, 3, 6, 22)))
        text = ("{% set x = 'aaaaaaaa' %}{% set n = 9999 %}" + body).encode()
    else:
        text = harm.text(whole.encode())
    return Case(files=files() | {"chat_template.jinja": text}, run=_chat)


def _block(random: Random, depth: int) -> str:
    """Statements of Jinja within each other."""
    if depth <= 0:
        return "{{ " + random.choice(VALUES) + " }}"
    inner = "".join(_block(random, depth - 1) for _ in range(random.choice((1, 1, 1, 2))))
    value = random.choice(VALUES)
    return random.choice(
        (
            "{% for i in range(n) %}" + inner + "{% endfor %}",
            f"{{% for i in {value} %}}{inner}{{% endfor %}}",
            f"{{% set x = {value} %}}{inner}",
            f"{{% set n = {random.choice(COUNTS)} %}}{inner}",
            f"{{% set x %}}{inner}{inner[:200]}{{% endset %}}{{{{ x }}}}",
            f"{{% if {value} %}}{inner}{{% endif %}}",
            "{% macro m(a) %}" + inner + "{{ m(a) }}{% endmacro %}{{ m(x) }}",
            f"{{% filter upper %}}{inner}{{% endfilter %}}",
        )
    )


def _chat(folder: Path) -> None:
    """A chat's tokens, as the server gets them."""
    from shardwise.runtime.text.model_text import read_model_text

    messages = [{"role": "user", "content": WORDS}, {"role": "assistant", "content": "a <b>"}]
    given = {"messages": messages, "tools": None, "add_generation_prompt": True, "more": {}}
    jobs = read_model_text(folder).jobs
    try:
        asyncio.run(jobs.chat(given, 4096))
    finally:
        jobs.stop()


# Grammars.

FORMS: tuple[tuple[str, Any], ...] = (
    ("json_object", None),
    ("json_schema", {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}}),
    ("json_schema", {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}),
    ("regex", "(red|green) [0-9]{2}"),
    ("choice", ["left", "right (or not)"]),
)


def _grammar(random: Random, harm: Harm) -> Case:
    form, what = random.choice(FORMS)
    if harm is not WHOLE:
        form = random.choice(("json_schema", "json_schema", "json_schema", "regex", "choice"))
        if form == "regex":
            parts = [random.choice(PATTERNS) for _ in range(random.choice((1, 2, 50)))]
            what = random.choice(("", "|")).join(parts)
        elif form == "choice":
            what = [_piece(random)[:1000] for _ in range(random.choice((1, 5, 1000)))]
        else:
            what = _schema(random, random.choice((0, 1, 3, 8)))
            what["$defs"] = {name: _schema(random, 2) for name in "ab"}
    if _length([form, what], {}) > MOST_BYTES:
        form, what = "json_schema", _schema(random, 1)
    return Case(files=files() | {"form.json": json.dumps([form, what]).encode()}, run=_form)


def _length(value: Any, known: dict[int, int]) -> int:
    """Characters of a document, without writing it: parts that stand in it often may make
    gigabytes."""
    if not isinstance(value, dict | list):
        return len(json.dumps(value))
    if id(value) not in known:
        inner = value.values() if isinstance(value, dict) else value
        names = [len(json.dumps(name)) + 2 for name in value] if isinstance(value, dict) else []
        parts = [_length(each, known) + 2 for each in inner]
        known[id(value)] = sum(names) + sum(parts) + 2 * (not parts)
    return known[id(value)]


def _schema(random: Random, depth: int) -> dict[str, Any]:
    """A schema that nests so deep, with counts that multiply."""
    number, pattern = random.choice(COUNTS), random.choice(PATTERNS)
    leaves: tuple[dict[str, Any], ...] = (
        {"type": "integer", "multipleOf": number},
        {"type": "number", "multipleOf": random.choice((0.001, 1e-300, 1e300, 7.77777))},
        {"type": "integer", "minimum": -number, "maximum": number * 10**20},
        {"type": "string", "pattern": pattern, "maxLength": number},
        {"type": "string", "minLength": number},
        {"enum": [str(i) for i in range(min(number, 3000))]},
        {"$ref": random.choice(("#", "#/$defs/a", "#/$defs/b", "#/nowhere", "http://127.0.0.1/x"))},
        {"const": "a" * min(number, 50_000)},
        {"type": random.choice(("null", "boolean", "nonsense", ["string", "integer"], 7))},
    )
    if depth <= 0:
        return random.choice(leaves)
    inner = [_schema(random, depth - 1) for _ in range(random.choice((1, 2, 2, 3)))]
    return random.choice(
        (
            {"type": "array", "items": inner[0], "minItems": number},
            {"type": "array", "prefixItems": inner, "maxItems": number},
            {"anyOf": inner * random.choice((1, 2, 50))},
            {"allOf": inner},
            {"oneOf": inner},
            {"not": inner[0]},
            {
                "type": "object",
                "properties": {f"p{i}": inner[i % len(inner)] for i in range(min(number, 300))},
                "required": [f"p{i}" for i in range(min(number, 300))],
            },
            {"type": "object", "patternProperties": {pattern: inner[0]}, "minProperties": number},
            {"type": "object", "additionalProperties": inner[0]},
        )
    )


def _form(folder: Path) -> None:
    """A form as the server reads it, and the beginning of an answer."""
    import numpy as np

    from shardwise.errors import BadRequest
    from shardwise.runtime.text.model_text import read_model_text

    form, what = json.loads((folder / "form.json").read_text())
    text = read_model_text(folder)
    try:
        state = asyncio.run(text.forms.constraint(form, what)).fresh()
    finally:
        text.jobs.stop()
    draw = Random(7)
    for _ in range(40):
        bits = np.unpackbits(state.allowed().view(np.uint8), bitorder="little").nonzero()[0]
        if state.done or not len(bits):
            return
        if wrong := state.take(int(draw.choice(bits.tolist()))):
            raise BadRequest(f"the answer cannot continue: {wrong}")


KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {
    "tokenizer": _text("tokenizer.json"),
    "words": _text("the others"),
    "template": _template,
    "grammar": _grammar,
}
