//! A recogniser whose far end is the scenario. It accepts audio of any rate and keeps what it was sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::UnboundedReceiverStream;

use vivavoce_audio::{Encoding, linear16};
use vivavoce_seams::parameters::Parameter;
use vivavoce_seams::{
    Accepts, AudioSink, ErrorKind, FinalDelay, ProviderError, SpeechToText, SttEvent, SttInput,
    SttRequest, SttStream, Transcript,
};

/// How a stream opens; without a script at once.
#[derive(Debug, Clone, Copy)]
pub enum Opening {
    Takes(Duration),
    Fails(ErrorKind),
    Panics,
    Never,
}

type Said = Option<Result<SttEvent, ProviderError>>;

pub struct Recogniser {
    slug: &'static str,
    final_delay: Mutex<FinalDelay>,
    parameters: Mutex<&'static [Parameter]>,
    openings: Mutex<VecDeque<Opening>>,
    streams: watch::Sender<Vec<Arc<Stream>>>,
}

/// A stream that was opened.
pub struct Stream {
    pub rate: u32,
    pub language: String,
    heard: Mutex<Heard>,
    /// `None` ends the stream; beyond that it is gone.
    says: Mutex<Option<mpsc::UnboundedSender<Said>>>,
    /// Whether it takes what is sent.
    takes: watch::Sender<bool>,
    last_words: Mutex<Option<SttEvent>>,
}

#[derive(Default)]
struct Heard {
    /// Runs of equal samples: their value, and how many.
    runs: Vec<(i16, usize)>,
    finalizes: usize,
    ended: bool,
}

impl Recogniser {
    pub fn new(slug: &'static str) -> Self {
        Self {
            slug,
            final_delay: Mutex::new(FinalDelay::UNKNOWN),
            parameters: Mutex::new(&[]),
            openings: Mutex::default(),
            streams: watch::Sender::default(),
        }
    }

    /// How long its finals are known to take.
    pub fn finals_take(&self, delay: FinalDelay) {
        *self.final_delay.lock().unwrap() = delay;
    }

    /// What becomes of the fields of its config.
    pub fn ignores(&self, parameters: &'static [Parameter]) {
        *self.parameters.lock().unwrap() = parameters;
    }

    /// How the next streams open.
    pub fn opens(&self, openings: impl IntoIterator<Item = Opening>) {
        self.openings.lock().unwrap().extend(openings);
    }

    /// The stream of this number, as soon as it opens.
    pub async fn stream(&self, number: usize) -> Arc<Stream> {
        let mut streams = self.streams.subscribe();
        let opened = super::in_time(streams.wait_for(|streams| streams.len() > number)).await;
        Arc::clone(&opened.unwrap()[number])
    }

    /// How many streams were opened so far.
    pub fn opened(&self) -> usize {
        self.streams.borrow().len()
    }

    /// How many streams a session holds.
    pub fn live(&self) -> usize {
        let streams = self.streams.borrow();
        streams.iter().filter(|stream| !stream.is_over()).count()
    }
}

#[async_trait]
impl SpeechToText for Recogniser {
    fn slug(&self) -> &'static str {
        self.slug
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16],
            rates: &[],
            stereo: false,
            stream_limit: None,
        }
    }

    fn final_delay(&self) -> FinalDelay {
        *self.final_delay.lock().unwrap()
    }

    fn parameters(&self) -> &'static [Parameter] {
        *self.parameters.lock().unwrap()
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        let opening = self.openings.lock().unwrap().pop_front();
        match opening {
            None => {}
            Some(Opening::Takes(time)) => sleep(time).await,
            Some(Opening::Fails(kind)) => return Err(failure(kind)),
            Some(Opening::Panics) => panic!("a recogniser's mistake"),
            Some(Opening::Never) => std::future::pending().await,
        }
        let (sink, input) = AudioSink::channel(8);
        let (says, said) = mpsc::unbounded_channel();
        let stream = Arc::new(Stream {
            rate: request.format.layout.rate.hz(),
            language: request.language,
            heard: Mutex::default(),
            says: Mutex::new(Some(says)),
            takes: watch::Sender::new(true),
            last_words: Mutex::default(),
        });
        tokio::spawn(Arc::clone(&stream).hear(input));
        self.streams
            .send_modify(|streams| streams.push(Arc::clone(&stream)));
        let events = UnboundedReceiverStream::new(said)
            .map(|event| event.unwrap_or_else(|| panic!("a recogniser's mistake")));
        Ok(SttStream {
            sink,
            events: events.boxed(),
        })
    }
}

impl Stream {
    async fn hear(self: Arc<Self>, mut input: mpsc::Receiver<SttInput>) {
        loop {
            let mut takes = self.takes.subscribe();
            let _ = takes.wait_for(|takes| *takes).await;
            match input.recv().await {
                Some(SttInput::Audio(sound)) => {
                    let mut heard = self.heard.lock().unwrap();
                    for sample in linear16::samples(&sound) {
                        match heard.runs.last_mut() {
                            Some((value, count)) if *value == sample => *count += 1,
                            _ => heard.runs.push((sample, 1)),
                        }
                    }
                }
                Some(SttInput::Finalize) => self.heard.lock().unwrap().finalizes += 1,
                None => break,
            }
        }
        self.heard.lock().unwrap().ended = true;
        let last_words = self.last_words.lock().unwrap().take();
        if let Some(says) = self.says.lock().unwrap().take()
            && let Some(last_words) = last_words
        {
            let _ = says.send(Some(Ok(last_words)));
        }
    }

    fn send(&self, said: Said) {
        let says = self.says.lock().unwrap();
        let _ = says.as_ref().expect("the stream goes on").send(said);
    }

    pub fn says(&self, event: SttEvent) {
        self.send(Some(Ok(event)));
    }

    /// The connection drops.
    pub fn drops(&self) {
        self.send(Some(Err(failure(ErrorKind::Unavailable))));
    }

    pub fn panics(&self) {
        self.send(None);
    }

    /// It takes no more of what is sent, or does again.
    pub fn takes(&self, takes: bool) {
        self.takes.send_replace(takes);
    }

    /// What it says when the audio has ended.
    pub fn ends_with(&self, event: SttEvent) {
        *self.last_words.lock().unwrap() = Some(event);
    }

    /// The numbers of the stretches of 20 ms that it heard; each must be whole.
    pub fn heard(&self) -> Vec<i16> {
        let whole = self.rate as usize / 50;
        let heard = self.heard.lock().unwrap();
        for (number, samples) in &heard.runs {
            assert_eq!(*samples, whole, "stretch {number} at {} Hz", self.rate);
        }
        heard.runs.iter().map(|(number, _)| *number).collect()
    }

    /// How many samples it heard that are at least so loud.
    pub fn louder_than(&self, least: u16) -> usize {
        let heard = self.heard.lock().unwrap();
        let loud = heard
            .runs
            .iter()
            .filter(|(sample, _)| sample.unsigned_abs() >= least);
        loud.map(|(_, samples)| samples).sum()
    }

    /// How often a final was asked for.
    pub fn finalizes(&self) -> usize {
        self.heard.lock().unwrap().finalizes
    }

    /// Whether no more audio comes.
    pub fn is_over(&self) -> bool {
        self.heard.lock().unwrap().ended
    }
}

pub fn failure(kind: ErrorKind) -> ProviderError {
    ProviderError::new("scripted", kind, "a scripted failure")
}

fn transcript(text: &str) -> Transcript {
    Transcript {
        text: text.to_owned(),
        ..Transcript::default()
    }
}

pub fn partial(text: &str) -> SttEvent {
    SttEvent::Partial(transcript(text))
}

/// A final.
pub fn said(text: &str) -> SttEvent {
    SttEvent::Final(transcript(text))
}
