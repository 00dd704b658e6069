//! What becomes of each event, as data: `docs/openai.md` is generated from it.

/// What becomes of an event of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Becomes {
    /// It has its effect.
    Honoured,
    /// It is answered by an `error` that says why.
    Refused,
}

/// An event of the interface.
#[derive(Debug)]
pub struct Event {
    /// Its `type`; where the beta has another one, that stands behind a slash.
    pub name: &'static str,
    /// What becomes of it.
    pub becomes: Becomes,
    /// How, for people.
    pub says: &'static str,
}

const fn works(name: &'static str, says: &'static str) -> Event {
    let becomes = Becomes::Honoured;
    Event {
        name,
        becomes,
        says,
    }
}

const fn refused(name: &'static str, says: &'static str) -> Event {
    let becomes = Becomes::Refused;
    Event {
        name,
        becomes,
        says,
    }
}

/// What clients send.
#[rustfmt::skip]
pub const FROM_CLIENT: &[Event] = &[
    works("session.update", "all or nothing; `session.updated` comes when it is in force, and shows what is. Changes of sound, recogniser and voice may come at any time"),
    works("input_audio_buffer.append", "Base64, at most 3 MiB; turns are found at the pace of speech, and with `commit` at any pace"),
    works("input_audio_buffer.commit", "the turn ends with what was said before; with turn detection, too. Less than 100 ms, or nobody speaking where turns are detected, is `input_audio_buffer_commit_empty`"),
    works("input_audio_buffer.clear", "what was said since the last commit is no item"),
    works("conversation.item.create", "messages with text, sound (which is recognised; answers wait for it) and images (passed on to the model); calls of functions and what they returned"),
    works("conversation.item.retrieve", "without its sound, which is not kept"),
    works("conversation.item.truncate", "what the assistant has said, to the words that had ended by `audio_end_ms`; more than was sent is an error. An interruption is counted in what was played without it, and `conversation.item.truncated` says so"),
    works("conversation.item.delete", ""),
    works("response.create", "one of the conversation at a time; while the last one is only still being heard, the next one waits. `conversation: none` beside it, at most 4. `voice` and formats are the session's: another one is refused"),
    works("response.cancel", "what is being said stops within 20 ms"),
    works("output_audio_buffer.clear", "as `response.cancel`; OpenAI has it for WebRTC only"),
    works("transcription_session.update", "the beta's name of `session.update` in transcription sessions"),
];

/// What the server sends.
#[rustfmt::skip]
pub const FROM_SERVER: &[Event] = &[
    works("error", "with the `event_id` of the event that it answers"),
    works("session.created", ""),
    works("session.updated", "in the beta's transcription sessions `transcription_session.updated`"),
    works("conversation.created", "to clients of the beta"),
    works("conversation.item.added / conversation.item.created", ""),
    works("conversation.item.done", "not in the beta"),
    works("conversation.item.retrieved", ""),
    works("conversation.item.truncated", "also of what the caller has interrupted"),
    works("conversation.item.deleted", ""),
    works("conversation.item.input_audio_transcription.delta", "each final piece, when the turn has ended"),
    works("conversation.item.input_audio_transcription.completed", "`usage` is the length of the turn in seconds"),
    works("conversation.item.input_audio_transcription.failed", ""),
    works("input_audio_buffer.committed", ""),
    works("input_audio_buffer.cleared", ""),
    works("input_audio_buffer.speech_started", "with `semantic_vad` over an answer only once it is known that somebody interrupts: an \"mhm\" does not"),
    works("input_audio_buffer.speech_stopped", "when the turn is over"),
    works("input_audio_buffer.timeout_triggered", "`idle_timeout_ms` after an answer was heard"),
    works("output_audio_buffer.cleared", "answers `output_audio_buffer.clear`"),
    works("rate_limits.updated", "what the language model's endpoint says in `x-ratelimit-*`; empty where it says nothing"),
    works("response.created", ""),
    works("response.done", "when the answer was heard; `usage` are the tokens of the language model"),
    works("response.output_item.added", ""),
    works("response.output_item.done", "of a call as soon as the model has finished"),
    works("response.content_part.added", ""),
    works("response.content_part.done", ""),
    works("response.output_text.delta / response.text.delta", ""),
    works("response.output_text.done / response.text.done", ""),
    works("response.output_audio.delta / response.audio.delta", "20 ms each, at the pace at which they are heard (`socket.lead_ms` ahead)"),
    works("response.output_audio.done / response.audio.done", ""),
    works("response.output_audio_transcript.delta / response.audio_transcript.delta", "as the model writes, ahead of the sound"),
    works("response.output_audio_transcript.done / response.audio_transcript.done", "of an answer that was cut off what was heard of it"),
    works("response.function_call_arguments.delta", ""),
    works("response.function_call_arguments.done", ""),
    refused("output_audio_buffer.started, output_audio_buffer.stopped, input_audio_buffer.dtmf_event_received", "never sent: of WebRTC and SIP"),
    refused("conversation.item.input_audio_transcription.segment", "never sent: speakers are told apart on `/ws` alone"),
    refused("mcp_list_tools.…, response.mcp_call…", "never sent: tools of type `mcp` are refused"),
];

/// The tables, as Markdown.
pub fn tables() -> String {
    let mut text = String::new();
    for (title, events) in [
        ("Events of the client", FROM_CLIENT),
        ("Events of the server", FROM_SERVER),
    ] {
        text.push_str(&format!("\n## {title}\n\n| event | | |\n|---|---|---|\n"));
        for event in events {
            let becomes = match event.becomes {
                Becomes::Honoured => "works",
                Becomes::Refused => "no",
            };
            let names = event
                .name
                .split([',', '/'])
                .map(|name| format!("`{}`", name.trim()));
            let names: Vec<String> = names.collect();
            text.push_str(&format!(
                "| {} | {becomes} | {} |\n",
                names.join(", "),
                event.says
            ));
        }
    }
    text
}
