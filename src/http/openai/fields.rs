//! What becomes of each field of OpenAI's requests, as data: `docs/openai.md` is generated from it.

use std::fmt::Write;

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Becomes {
    /// It has its effect.
    Honoured,
    /// It has none, and the answer's `x-ignored` names it.
    Ignored,
    /// It needs no effect.
    Unneeded,
    /// It is refused by name.
    Refused,
}

/// A field of a request.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub becomes: Becomes,
    /// How, for people.
    pub says: &'static str,
}

const fn field(name: &'static str, becomes: Becomes, says: &'static str) -> Field {
    Field {
        name,
        becomes,
        says,
    }
}

/// Of `POST /v1/audio/speech`.
#[rustfmt::skip]
pub const SPEECH: &[Field] = &[
    field("model", Becomes::Honoured, "`provider/model[:voice]`, a provider's slug, or a name of `GET /v1/models`"),
    field("input", Becomes::Honoured, "the text, at most 32 KiB (OpenAI: 4096 characters)"),
    field("voice", Becomes::Honoured, "a voice of `GET /v1/audio/voices`, as a text or `{\"id\": …}`; at providers other than `openai` OpenAI's own names (`alloy` …) mean the voice of the model's name, else the default, and are in `x-ignored`; may be left out"),
    field("instructions", Becomes::Ignored, "they are passed on to no provider"),
    field("response_format", Becomes::Honoured, "`mp3` (the default), `opus` (in Ogg), `flac`, `wav` and `pcm`, all at 24 kHz and mono; `aac` is refused"),
    field("speed", Becomes::Honoured, "0.25 to 4; the pitch stays"),
    field("stream_format", Becomes::Honoured, "`audio` (the default), or `sse`: `speech.audio.delta` and `speech.audio.done`"),
];

/// Of `POST /v1/audio/transcriptions`; `/v1/audio/translations` takes the same.
#[rustfmt::skip]
pub const TRANSCRIPTIONS: &[Field] = &[
    field("file", Becomes::Honoured, "WAV, MP3, FLAC or Ogg/Opus, whatever it is called; at most 25 MiB and 4 hours"),
    field("model", Becomes::Honoured, "`provider/model`, a provider's slug, or a name of `GET /v1/models`"),
    field("language", Becomes::Honoured, "`en` (which means `en-US`), or a longer tag such as `pt-BR`; without it the first of `languages[]`, else it is found out by models that can (`local/whisper-base`, provider `openai`), and is `en-US` for others, as in a session"),
    field("languages[]", Becomes::Honoured, "further languages that may be spoken, at most 10; ignored where the recogniser takes none"),
    field("keywords[]", Becomes::Honoured, "keyterms, at most 50 of 60 characters; ignored where the recogniser takes none"),
    field("prompt", Becomes::Honoured, "its parts between commas, semicolons and line ends are keyterms, too; of prose, which is longer, nothing is taken"),
    field("response_format", Becomes::Honoured, "`json` (the default), `text`, `srt`, `verbose_json` and `vtt`; `diarized_json` is refused"),
    field("timestamp_granularities[]", Becomes::Honoured, "`segment` (the default) and `word`, with `verbose_json`; a segment is an utterance; words are ignored where the recogniser tells no times"),
    field("stream", Becomes::Honoured, "`transcript.text.delta` for each utterance, `transcript.text.done` at the end; another `response_format` than `json` is ignored then"),
    field("temperature", Becomes::Ignored, "0 is what is done; above it is ignored"),
    field("include[]", Becomes::Ignored, "there are no probabilities of tokens"),
    field("chunking_strategy", Becomes::Unneeded, "long sound is divided in any case; the thresholds of `server_vad` are ignored"),
    field("known_speaker_names[]", Becomes::Refused, "speakers are told apart on `/ws` alone"),
    field("known_speaker_references[]", Becomes::Refused, "speakers are told apart on `/ws` alone"),
];

/// Marks the tables in the page.
const BEGIN: &str = "<!-- fields -->\n";

/// The page with the tables generated from the lists above.
pub fn page(text: &str) -> Option<String> {
    let (before, _) = text.split_once(BEGIN)?;
    let mut page = format!("{before}{BEGIN}");
    for (path, fields) in [
        ("/v1/audio/speech", SPEECH),
        ("/v1/audio/transcriptions", TRANSCRIPTIONS),
    ] {
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "\n## Fields of `POST {path}`\n\n| field | | |\n|---|---|---|\n"
        );
        for Field {
            name,
            becomes,
            says,
        } in fields
        {
            let becomes = match becomes {
                Becomes::Honoured => "works",
                Becomes::Ignored => "ignored",
                Becomes::Unneeded => "not needed",
                Becomes::Refused => "refused",
            };
            let _ = writeln!(page, "| `{name}` | {becomes} | {says} |");
        }
    }
    page.push_str(&vivavoce_realtime::events::tables());
    Some(page)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_openais_interface_describes_this_code() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openai.md");
        let committed = std::fs::read_to_string(file).unwrap();
        let rendered = super::page(&committed).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(file, &rendered).unwrap();
        }
        let committed = std::fs::read_to_string(file).unwrap();
        let advice = "is stale; run UPDATE_DOCS=1 cargo test describes";
        assert!(committed == rendered, "docs/openai.md {advice}");
    }
}
