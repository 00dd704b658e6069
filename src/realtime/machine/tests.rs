#![allow(clippy::needless_pass_by_value)] // events are written where they are sent

use super::*;
use crate::fuzzing::Local;
use vivavoce_llm::Finish;

/// A conversation, and what came of each step.
struct Scene {
    machine: Realtime,
    now: Instant,
    told: Vec<Value>,
    sent: Vec<Value>,
    asked: Vec<ChatRequest>,
}

impl Scene {
    fn new(version: Version, kind: Kind) -> Self {
        let begin = Begin {
            version,
            session: SessionObject::new(kind, None),
            seed: "s".to_owned(),
            names: Arc::new(Local),
            endpoints: Endpoints::for_tests(),
            tenant: None,
        };
        let mut scene = Self {
            machine: Realtime::new(begin),
            now: Instant::now(),
            told: Vec::new(),
            sent: Vec::new(),
            asked: Vec::new(),
        };
        scene.note();
        // Its first config is in force.
        scene.session(json!({"type": "ready"}));
        scene
    }

    fn usual() -> Self {
        Self::new(Version::Current, Kind::Conversation)
    }

    fn note(&mut self) -> &mut Self {
        for output in self.machine.take() {
            match output {
                Output::Tell(event) => self.told.push(serde_json::from_str(&event).unwrap()),
                Output::Send(message) => self.sent.push(serde_json::from_str(&message).unwrap()),
                Output::Ask { request, .. } => self.asked.push(*request),
                _ => {}
            }
        }
        self
    }

    fn client(&mut self, event: Value) -> &mut Self {
        self.machine.client(&event.to_string(), self.now);
        self.note()
    }

    fn session(&mut self, event: Value) -> &mut Self {
        self.machine.session_event(&event.to_string(), self.now);
        self.note()
    }

    fn update(&mut self, session: Value) -> &mut Self {
        self.client(json!({"type": "session.update", "session": session}));
        self.session(json!({"type": "ready"}))
    }

    fn model(&mut self, text: &str) -> &mut Self {
        let key = self.machine.keys;
        let event = AnswerEvent::Text(text.to_owned());
        self.machine.answer(key, Ok(event), self.now);
        self.note()
    }

    fn model_ends(&mut self) -> &mut Self {
        let key = self.machine.keys;
        let done = AnswerEvent::Done {
            finish: Finish::Complete,
            usage: None,
        };
        self.machine.answer(key, Ok(done), self.now);
        self.note()
    }

    fn says(&mut self, text: &str) -> &mut Self {
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "content": content});
        self.client(json!({"type": "conversation.item.create", "item": item}));
        self.client(json!({"type": "response.create"}))
    }

    fn all(&self, kind: &str) -> Vec<&Value> {
        self.told
            .iter()
            .filter(|event| event["type"] == kind)
            .collect()
    }

    fn last(&self, kind: &str) -> &Value {
        self.all(kind).last().unwrap_or_else(|| panic!("{kind}"))
    }

    /// The item that is being said.
    fn item(&self) -> String {
        let item = &self.last("response.output_item.added")["item"]["id"];
        item.as_str().unwrap().to_owned()
    }
}

#[test]
fn an_update_is_all_or_nothing_and_told_when_it_is_in_force() {
    let mut scene = Scene::usual();
    let wrong =
        json!({"type": "realtime", "instructions": "New.", "audio": {"output": {"speed": 9}}});
    scene.client(json!({"type": "session.update", "event_id": "e", "session": wrong}));
    let error = &scene.last("error")["error"];
    assert_eq!(
        (&error["param"], &error["event_id"]),
        (&json!("session.audio.output.speed"), &json!("e"))
    );
    assert_eq!(scene.machine.session.instructions, "");

    let voice = json!({"type": "realtime", "audio": {"output": {"speed": 1.5}}});
    scene.client(json!({"type": "session.update", "session": voice}));
    assert!(scene.all("session.updated").is_empty());
    assert_eq!(
        scene.sent.last().unwrap()["tts_config"]["speaking_rate"],
        1.5
    );
    scene.session(json!({"type": "ready"}));
    assert_eq!(
        scene.last("session.updated")["session"]["audio"]["output"]["speed"],
        1.5
    );

    // What concerns the model alone is in force at once.
    scene.client(json!({"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}}));
    assert_eq!(
        scene.last("session.updated")["session"]["instructions"],
        "Be brief."
    );
}

#[test]
fn an_update_that_the_session_refuses_leaves_what_was_in_force() {
    let mut scene = Scene::usual();
    let voice = json!({"type": "realtime", "audio": {"output": {"speed": 1.5}}});
    scene.client(json!({"type": "session.update", "event_id": "e", "session": voice}));
    scene.session(json!({"type": "error", "code": "unsupported_provider", "message": "none", "in_reply_to": "config"}));
    assert_eq!(scene.last("error")["error"]["event_id"], "e");
    scene.update(json!({"type": "realtime", "instructions": "x"}));
    assert_eq!(
        scene.last("session.updated")["session"]["audio"]["output"]["speed"],
        1.0
    );
}

#[test]
fn an_answer_that_is_asked_for_behind_an_update_is_as_the_update_says() {
    let mut scene = Scene::usual();
    let written = json!({"type": "realtime", "output_modalities": ["text"], "instructions": "New.",
        "audio": {"output": {"speed": 1.5}}});
    scene.client(json!({"type": "session.update", "session": written}));
    scene.says("Hi");
    let response = &scene.last("response.created")["response"];
    assert_eq!(response["output_modalities"], json!(["text"]));
    assert_eq!(scene.asked[0].messages[0]["content"], "New.");
}

#[test]
fn one_answer_at_a_time_and_the_next_one_while_the_last_is_only_heard() {
    let mut scene = Scene::usual();
    scene
        .session(json!({"type": "ready"}))
        .says("One")
        .model("First.");
    scene.client(json!({"type": "response.create"}));
    assert_eq!(
        scene.last("error")["error"]["code"],
        "conversation_already_has_active_response"
    );
    scene
        .model_ends()
        .client(json!({"type": "response.create"}));
    assert_eq!((scene.all("error").len(), scene.asked.len()), (1, 1));
    let item = scene.item();
    scene.session(json!({"type": "tts_playback_complete", "id": item}));
    assert_eq!(
        scene.last("response.done")["response"]["status"],
        "completed"
    );
    assert_eq!(scene.asked.len(), 2);
}

#[test]
fn an_answer_waits_for_what_was_said_before_it() {
    let mut scene = Scene::usual();
    scene.update(json!({"type": "realtime", "audio": {"input": {"turn_detection": null}}}));
    let sound = BASE64.encode(vec![0; 48_000]);
    scene.client(json!({"type": "input_audio_buffer.append", "audio": sound}));
    scene.client(json!({"type": "input_audio_buffer.commit"}));
    scene.client(json!({"type": "response.create"}));
    assert_eq!(scene.sent.last().unwrap()["type"], "end_turn");
    assert!(scene.asked.is_empty());
    scene.session(
        json!({"type": "stt_result", "is_final": true, "turn_transcript": "Before a pause"}),
    );
    scene.session(json!({"type": "vad_event", "event": "turn_end", "reason": "silence"}));
    assert!(scene.asked.is_empty());
    scene.session(
        json!({"type": "stt_result", "is_final": true, "turn_transcript": "and behind it"}),
    );
    scene.session(json!({"type": "vad_event", "event": "turn_end", "reason": "client"}));
    let told = &scene.asked[0].messages[0]["content"];
    assert_eq!(told, "Before a pause and behind it");
}

#[test]
fn a_backchannel_over_an_answer_interrupts_nothing_and_words_do() {
    let mut scene = Scene::usual();
    let turns = json!({"type": "semantic_vad"});
    scene.update(json!({"type": "realtime", "audio": {"input": {"turn_detection": turns}}}));
    scene.says("Tell me").model("A long story, a story.");
    let item = scene.item();
    scene.session(json!({"type": "tts_started", "id": item}));
    let begins = json!({"type": "vad_event", "event": "speech_start", "timestamp_ms": 700});
    scene.session(begins.clone());
    scene.session(json!({"type": "interruption", "state": "suspected"}));
    scene.session(
        json!({"type": "stt_result", "is_final": true, "backchannel": true, "transcript": "mhm"}),
    );
    scene.session(json!({"type": "interruption", "state": "resumed"}));
    scene.session(
        json!({"type": "vad_event", "event": "turn_end", "reason": "silence", "timestamp_ms": 900}),
    );
    assert!(scene.all("input_audio_buffer.speech_started").is_empty());
    assert!(scene.all("response.done").is_empty());

    scene.session(begins);
    scene.session(json!({"type": "interruption", "state": "confirmed"}));
    assert_eq!(
        scene.last("input_audio_buffer.speech_started")["audio_start_ms"],
        700
    );
    scene.session(
        json!({"type": "tts_interrupted", "id": item, "heard_text": "A long", "played_ms": 800}),
    );
    let done = &scene.last("response.done")["response"];
    assert_eq!(done["status_details"]["reason"], "turn_detected");
    assert_eq!(done["output"][0]["content"][0]["transcript"], "A long");
    assert_eq!(
        scene.last("conversation.item.truncated")["audio_end_ms"],
        800
    );
}

#[test]
fn a_client_that_stopped_playing_earlier_has_heard_less() {
    let mut scene = Scene::usual();
    scene
        .session(json!({"type": "ready"}))
        .says("Go on")
        .model("One two three.")
        .model_ends();
    let item = scene.item();
    scene.session(json!({"type": "tts_started", "id": item}));
    for (word, at) in [("One", 0), ("two", 300), ("three.", 600)] {
        scene.session(json!({"type": "tts_progress", "id": item, "text": word, "played_ms": at}));
    }
    scene.machine.sound(&Bytes::from(vec![0; 48_000]));
    let truncate = |ms: u64| {
        json!({
            "type": "conversation.item.truncate", "item_id": item, "content_index": 0, "audio_end_ms": ms,
        })
    };
    scene.note().client(truncate(1_001));
    assert_eq!(scene.last("error")["error"]["param"], "audio_end_ms");
    scene.client(truncate(350));
    assert_eq!(
        scene.sent.last().unwrap(),
        &json!({"type": "clear", "id": item})
    );
    scene.session(
        json!({"type": "tts_interrupted", "id": item, "heard_text": "One two", "played_ms": 620}),
    );
    let heard = &scene.last("response.done")["response"]["output"][0]["content"][0]["transcript"];
    assert_eq!(heard, "One");
    scene.client(truncate(0));
    scene.says("And?");
    let told = &scene.asked[1].messages;
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn a_turn_without_words_is_told_and_not_answered_and_late_words_are() {
    let mut scene = Scene::usual();
    scene.update(json!({"type": "realtime", "audio": {"input": {"transcription": {}}}}));
    scene.session(json!({"type": "vad_event", "event": "speech_start", "timestamp_ms": 10}));
    scene.session(
        json!({"type": "vad_event", "event": "turn_end", "reason": "timeout", "timestamp_ms": 900}),
    );
    let completed = "conversation.item.input_audio_transcription.completed";
    assert_eq!(scene.last(completed)["transcript"], "");
    assert!(scene.asked.is_empty());
    let result = json!({"type": "stt_result", "is_final": true, "transcript": "Late", "turn_transcript": "Late"});
    scene.session(result);
    assert_eq!(scene.last(completed)["transcript"], "Late");
    assert_eq!(scene.asked.len(), 1);
}

#[test]
fn the_model_goes_on_when_nobody_answers() {
    let mut scene = Scene::usual();
    let turns = json!({"type": "server_vad", "idle_timeout_ms": 5_000});
    scene.update(json!({"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": turns}}}));
    scene.says("Hi").model("Hello.").model_ends();
    let due = scene.machine.deadline().unwrap();
    assert_eq!(due - scene.now, Duration::from_secs(5));
    scene.machine.tick(due);
    scene.note();
    assert_eq!(scene.all("input_audio_buffer.timeout_triggered").len(), 1);
    assert_eq!(scene.asked.len(), 2);
}

#[test]
fn calls_keep_apart_whose_ids_begin_anew_with_each_answer() {
    let mut scene = Scene::usual();
    for _ in 0..2 {
        scene.says("Call");
        let function = vivavoce_llm::FunctionCall {
            id: "call_0".to_owned(),
            name: "f".to_owned(),
        };
        let call = AnswerEvent::Call {
            index: 0,
            begins: Some(function),
            arguments: "{}".to_owned(),
        };
        let key = scene.machine.keys;
        scene.machine.answer(key, Ok(call), scene.now);
        scene.note().model_ends();
    }
    let done = scene.all("response.function_call_arguments.done");
    assert_eq!(done.len(), 2);
    assert_ne!(done[0]["call_id"], done[1]["call_id"]);
}

#[test]
fn an_answer_that_was_cancelled_before_it_was_heard_was_not_said() {
    let mut scene = Scene::usual();
    scene
        .says("Hi")
        .model("Never")
        .client(json!({"type": "response.cancel"}));
    let response = &scene.last("response.done")["response"];
    assert_eq!(response["output"][0]["content"][0]["transcript"], "");
    scene.says("Again");
    assert_eq!(scene.asked[1].messages.len(), 2);
    // One that waits is told, too.
    scene
        .model("Now.")
        .model_ends()
        .client(json!({"type": "response.create", "event_id": "next"}));
    scene.client(json!({"type": "output_audio_buffer.clear"}));
    assert_eq!(scene.last("error")["error"]["event_id"], "next");
}

#[test]
fn the_beta_has_its_names() {
    let mut scene = Scene::new(Version::Beta, Kind::Conversation);
    scene
        .session(json!({"type": "ready"}))
        .says("Hi")
        .model("Hello.")
        .model_ends();
    let item = scene.item();
    scene.session(json!({"type": "tts_started", "id": item}));
    scene.machine.sound(&Bytes::from_static(&[0; 4]));
    scene
        .note()
        .session(json!({"type": "tts_playback_complete", "id": item}));
    for kind in [
        "conversation.created",
        "conversation.item.created",
        "response.audio.delta",
        "response.audio_transcript.done",
    ] {
        assert!(!scene.all(kind).is_empty(), "{kind}");
    }
    assert!(scene.all("conversation.item.added").is_empty());
    assert_eq!(
        scene.told[0]["session"]["modalities"],
        json!(["text", "audio"])
    );
    scene.client(json!({"type": "session.update", "session": {"output_modalities": ["text"]}}));
    assert_eq!(scene.last("error")["error"]["code"], "unknown_parameter");
}

#[test]
fn a_transcription_session_has_no_answers() {
    let mut scene = Scene::new(Version::Current, Kind::Transcription);
    scene.session(json!({"type": "ready"}));
    scene.session(json!({"type": "vad_event", "event": "speech_start", "timestamp_ms": 10}));
    let result = json!({"type": "stt_result", "is_final": true, "transcript": "Hi", "turn_transcript": "Hi"});
    scene.session(result);
    scene.session(
        json!({"type": "vad_event", "event": "turn_end", "reason": "silence", "timestamp_ms": 900}),
    );
    assert_eq!(
        scene
            .all("conversation.item.input_audio_transcription.completed")
            .len(),
        1
    );
    scene.client(json!({"type": "response.create"}));
    assert_eq!((scene.all("error").len(), scene.asked.len()), (1, 0));
}
