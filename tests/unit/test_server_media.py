"""Parts of a prompt that are no text, by their place."""

from __future__ import annotations

from typing import Any

import pytest

from proxima_server import media
from proxima_server.errors import APIError

TEXT = {"type": "text", "text": "What is it?"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SOUND = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


def said(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "Hi"}, {"role": "user", "content": [*parts]}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param(said(TEXT, PICTURE), "messages[1].content[1]", id="picture"),
        pytest.param(said(SOUND, PICTURE), "messages[1].content[0]", id="sound_first"),
        pytest.param(said(TEXT, "a", {"type": "video_url"}), "messages[1].content[2]", id="film"),
        pytest.param(said({"type": "audio_url"}), "messages[1].content[0]", id="sound_by_url"),
        pytest.param(said({"type": "image_embeds", "image_embeds": "a"}), "messages[1].content[0]", id="embeddings"),
        pytest.param(said({"image_url": "http://a/b.png"}), "messages[1].content[0]", id="without_a_type"),
        pytest.param(said({**TEXT, "uuid": "1", "image_pil": None}), "messages[1].content[0]", id="known_by_its_id"),
        pytest.param(said(TEXT, {"type": "image", "source": {}}), "messages[1].content[1]", id="anthropic"),
        pytest.param(
            said({"type": "tool_result", "content": [TEXT, {"type": "image"}]}),
            "messages[1].content[0].content[1]",
            id="what_a_tool_saw",
        ),
        pytest.param(
            {"input": [{"role": "user", "content": [{"type": "input_text"}, {"type": "input_image"}]}]},
            "input[0].content[1]",
            id="responses",
        ),
        pytest.param(
            {"input": [{"type": "function_call_output", "output": [{"type": "input_image"}]}]},
            "input[0].output[0]",
            id="what_a_function_saw",
        ),
    ],
)
def test_the_first_that_a_model_of_text_cannot_take_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(APIError) as refused:
        media.refuse(body)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "invalid_value", param)
    assert error.message.startswith(f"Invalid '{param}': the served model takes text only, no ")
    assert "base64" not in error.message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(said(TEXT, "a", {"x": 1}, {"type": 5}, 5, {"type": "refusal", "refusal": "no"}), id="no_media"),
        pytest.param({"messages": "image_url", "input": ["image_url", 5, {"content": None}]}, id="no_parts"),
        pytest.param({"messages": [{"image_url": "a", "content": "b"}], "prompt": "image"}, id="no_part_but_a_message"),
    ],
)
def test_all_else_is_for_others_to_check(body: dict[str, Any]) -> None:
    media.refuse(body)


@pytest.mark.parametrize(
    ("param", "message", "place"),
    [
        pytest.param("audio", "At most 0 audio(s) may be provided in one prompt.", "messages[1].content[2]", id="none"),
        pytest.param("image", "At most 1 image(s) may be provided in one prompt.", "messages[1].content[3]", id="one"),
        pytest.param("image_embeds", "You must set `--enable-mm-embeds`", "messages[1].content[4]", id="kind"),
        pytest.param("video", "At most 0 video(s) may be provided in one prompt.", None, id="there_is_none"),
        pytest.param(
            "type",
            "Unsupported chat content part type: 'input_file'. Supported types: text.",
            "messages[1].content[5].type",
            id="unknown_type",
        ),
        pytest.param(
            "type", "Missing 'type' field in multimodal part.", "messages[1].content[6].type", id="without_a_type"
        ),
        pytest.param("messages", "Found more placeholders", None, id="a_field_of_the_body"),
    ],
)
def test_what_vllm_refuses_is_placed(param: str, message: str, place: str | None) -> None:
    body = said(TEXT, PICTURE, SOUND, PICTURE, {"type": "image_embeds"}, {"type": "input_file"}, {"x": 1})
    assert media.named(param, message, body) == place
