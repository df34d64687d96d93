"""Log probabilities of tokens in OpenAI's two shapes, and the options that request them."""

from __future__ import annotations

from typing import Any, Final

from tidal_client.options import Parameter
from tidal_client.results import Generated
from tidal_gateway.api.request import ModelTarget
from tidal_gateway.errors import invalid

_BYTES: Final = "bytes:\\x"
_NEEDED: Final = ("logprobs", "token_texts", "top_token_texts")


def logprob_options(target: ModelTarget, tops: int | None) -> dict[str, Parameter]:
    """Return the options that request log probabilities.

    Args:
        target: Model.
        tops: Number of most likely tokens for each token; None for no log probabilities.

    Raises:
        Refusal: The model does not return them.
    """
    if tops is None:
        return {}
    lacking = [name for name in _NEEDED if name not in target.facts.outputs]
    if lacking:
        raise invalid(
            f"field 'logprobs': model '{target.name}' has no output '{lacking[0]}'; leave the field out, or build the "
            "model again",
            "logprobs",
        )
    return {"logprobs": True, "top_logprobs": tops} if tops else {"logprobs": True}


def chat_logprobs(part: Generated) -> dict[str, Any] | None:
    """Return the log probabilities of a part in the shape of chats; None if it has none."""
    if part.logprobs is None or part.token_texts is None:
        return None
    count = _shown(part)
    content = []
    for place in range(count):
        tops = part.top_logprobs[place] if part.top_logprobs is not None else {}
        texts = part.top_token_texts[place] if part.top_token_texts is not None else {}
        content.append(
            {
                **_entry(part.token_texts[place], part.logprobs[place]),
                "top_logprobs": [_entry(texts[token], value) for token, value in tops.items()],
            }
        )
    return {"content": content, "refusal": None}


def completion_logprobs(part: Generated, offset: int) -> dict[str, Any] | None:
    """Return the log probabilities of a part in the shape of completions; None if it has none.

    Args:
        part: Part of a text.
        offset: Number of characters of the text before this part.
    """
    if part.logprobs is None or part.token_texts is None:
        return None
    count = _shown(part)
    offsets = []
    for text in part.token_texts[:count]:
        offsets.append(offset)
        offset += _characters(text)
    tops = None
    if part.top_logprobs is not None and part.top_token_texts is not None:
        pairs = zip(part.top_logprobs[:count], part.top_token_texts[:count], strict=True)
        tops = [{texts[token]: value for token, value in values.items()} for values, texts in pairs]
    return {
        "tokens": part.token_texts[:count],
        "token_logprobs": part.logprobs[:count],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def characters(part: Generated) -> int:
    """Number of characters that the tokens of a part begin."""
    return sum(_characters(text) for text in (part.token_texts or ())[: _shown(part)])


def _shown(part: Generated) -> int:
    """Number of tokens without the one that ended the text."""
    return len(part.tokens) - (part.finish_reason == "eos")


def _entry(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(_content(text))}


def _content(text: str) -> bytes:
    """Bytes of a token: a part of a character is written as `bytes:` and its bytes."""
    if not text.startswith(_BYTES):
        return text.encode()
    return bytes.fromhex(text.removeprefix(_BYTES).replace("\\x", ""))


def _characters(text: str) -> int:
    # Bytes from 0x80 to 0xBF continue a character.
    return sum(byte & 0xC0 != 0x80 for byte in _content(text))
