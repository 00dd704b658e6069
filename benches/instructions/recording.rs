//! A whole recorder in virtual time, from its tap to the disk.

use std::time::Duration;

use actix::prelude::*;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use vivavoce::actors::recorder::{RecorderActor, RecordingFailed, StopRecording, Tap};
use vivavoce::audio::opus::FRAME;
use vivavoce::audio::{Channels, Layout, SampleRate};
use vivavoce::recordings::journal::Journals;
use vivavoce::recordings::writers::Writers;
use vivavoce::recordings::{Metadata, RecordingSettings};

use crate::{packets, sound};

const RATE: SampleRate = SampleRate::HZ_16000;

/// Hears that a recording has failed, which it must not.
struct Session;

impl Actor for Session {
    type Context = Context<Self>;
}

impl Handler<RecordingFailed> for Session {
    type Result = ();

    fn handle(&mut self, failed: RecordingFailed, _: &mut Context<Self>) {
        panic!("{}", failed.0);
    }
}

/// Both sides at once in stereo, or what is heard alone in packets of Opus, for so many frames of 20 ms.
pub fn record(channels: Channels, complexity: u8, count: usize) {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    System::with_tokio_rt(runtime).block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals::open_with(folder.path().to_owned(), Writers::none()).unwrap();
        let metadata = Metadata {
            stream_id: "one".to_owned(),
            tenant: None,
            public: false,
            started_at: 0,
            duration_ms: 0,
            size: 0,
            sha256: String::new(),
            channels: 0,
            participants: Vec::new(),
            complete: false,
            goes_on: false,
            parts: Vec::new(),
            cut: false,
            continues: None,
            file: None,
        };
        let settings = RecordingSettings {
            channels,
            complexity,
        };
        let journal = journals.begin(&metadata).unwrap();
        let tap = Tap::new(RATE, RATE, channels, Instant::now());
        let work = TaskTracker::new();
        let report = Session.start().recipient();
        let recorder = RecorderActor::new(tap.clone(), journal, settings, work.token(), report);
        let recorder = recorder.start();
        let frames = sound(Layout::mono(RATE));
        let packets = packets(Layout::mono(RATE));
        let (mut frames, mut packets) = (frames.iter().cycle(), packets.iter().cycle());
        for _ in 0..count {
            sleep(FRAME).await;
            let frame = frames.next().unwrap();
            let passed = packets.next().filter(|_| channels == Channels::Mono);
            tap.hear(frame, passed.map(Vec::as_slice), Instant::now());
            if channels == Channels::Stereo {
                tap.play(frame, Duration::ZERO);
            }
        }
        recorder.send(StopRecording).await.unwrap();
        work.close();
        work.wait().await;
    });
}
