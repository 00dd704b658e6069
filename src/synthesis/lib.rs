//! One-shot speech: text in, finished sound out, whoever asks. It checks the request, looks into the cache, lets
//! identical requests share one synthesis, and converts what the provider says into the format that was asked for.
//! `/speak`, the command line and sessions all come through here; pacing and interruption belong to sessions.

mod cache;
mod flight;
mod kept;
mod pronunciation;
mod request;
mod spoken;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument;

use vivavoce_audio::convert::Converter;
use vivavoce_audio::{AudioFormat, Encoding, wav};
use vivavoce_auth::TenantId;
use vivavoce_seams::{
    Credential, ErrorKind, ProviderError, ProviderTable, TextToSpeech, TtsEvent, TtsRequest,
    TtsStream,
};

use vivavoce_quotas::{FairQueue, Party, Permit, Place, Quota, Refused, Share};
use vivavoce_telemetry::metrics::{self, Task};

use cache::Cache;
pub use cache::CacheSettings;
use flight::{Budget, Flight, Held};
pub use flight::{FlightReader, SpokenWord};
pub use request::{CacheKey, InvalidField, MAX_TEXT_BYTES, Owner, SpeechConfig, TtsConfig};
pub use spoken::SpokenText;

/// Bytes of a provider's audio that are converted before other work gets its turn: at most 85 ms at 24 kHz.
const CONVERTED_AT_ONCE: usize = 4096;

/// Why there is no speech.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SynthesisError {
    /// A field of the request.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// No provider has this slug.
    #[error("there is no text-to-speech provider {slug:?}; this server has: {known}")]
    UnsupportedProvider {
        /// What was asked for.
        slug: String,
        /// What there is.
        known: String,
    },
    /// The provider failed.
    #[error("{error}")]
    Provider {
        /// How.
        error: ProviderError,
        /// Whether the caller's own credential was used.
        own_credential: bool,
    },
    /// The sound is longer than one request may be.
    #[error(
        "the speech is larger than {limit} bytes; ask for a shorter text, a lower rate or a compressed format"
    )]
    TooLong {
        /// The most that is kept.
        limit: usize,
    },
    /// A quota is used up.
    #[error(transparent)]
    Quota(#[from] Refused),
    /// All syntheses under way hold as much sound as they may.
    #[error("too much speech is under way at once; try again later")]
    NoMemory,
    /// The provider's sound cannot be read or written in the format asked for.
    #[error("{0}")]
    Conversion(String),
    /// Whoever made the sound has gone.
    #[error("the synthesis was abandoned")]
    Abandoned,
}

impl From<vivavoce_audio::convert::ConvertError> for SynthesisError {
    fn from(error: vivavoce_audio::convert::ConvertError) -> Self {
        Self::Conversion(error.to_string())
    }
}

/// Bounds of one-shot speech.
#[derive(Debug, Clone)]
pub struct SynthesisSettings {
    /// The cache; `None` keeps nothing and shares nothing.
    pub cache: Option<CacheSettings>,
    /// Syntheses at once per provider.
    pub per_provider: usize,
    /// Syntheses in all, those that wait for a place included.
    pub quota: Quota,
    /// What one party may have of the places, and of the cache.
    pub share: Share,
}

/// The maker of one-shot speech.
pub struct Synthesizer {
    providers: Arc<ProviderTable>,
    permits: DashMap<&'static str, FairQueue>,
    per_provider: usize,
    quota: Quota,
    share: Share,
    cache: Option<Cache>,
    flights: DashMap<CacheKey, Flight>,
    budget: Arc<Budget>,
}

/// Who speaks, and with which credential of the caller's.
type Provider = (Arc<dyn TextToSpeech>, Option<Credential>);

/// Speech that was asked for. What its sound holds in memory is counted as long as this is kept.
#[derive(Debug)]
pub struct Speech {
    /// Whether it comes from the cache.
    pub cached: bool,
    sound: Sound,
}

#[derive(Debug)]
enum Sound {
    /// From the cache. What it holds in memory is counted until this goes.
    Kept {
        words: Vec<SpokenWord>,
        sound: Bytes,
        _held: Held,
    },
    Coming(FlightReader),
}

impl Speech {
    /// All of it, in pieces; waits for the end of the synthesis.
    pub async fn whole(&mut self) -> Result<Vec<Bytes>, SynthesisError> {
        match &mut self.sound {
            Sound::Kept { sound, .. } => Ok(vec![std::mem::take(sound)]),
            Sound::Coming(reader) => reader.whole().await,
        }
    }

    /// The words whose places are known by now, behind the first so many.
    pub fn words(&self, known: usize) -> Vec<SpokenWord> {
        match &self.sound {
            Sound::Kept { words, .. } => words.get(known..).unwrap_or_default().to_vec(),
            Sound::Coming(reader) => reader.words(known),
        }
    }

    /// The next piece as soon as it is there; `None` at the end of complete speech.
    pub async fn next(&mut self) -> Option<Result<Bytes, SynthesisError>> {
        match &mut self.sound {
            Sound::Kept { sound, .. } if sound.is_empty() => None,
            Sound::Kept { sound, .. } => Some(Ok(std::mem::take(sound))),
            Sound::Coming(reader) => reader.next().await,
        }
    }
}

impl Synthesizer {
    /// A maker over the providers that there are.
    pub fn open(
        providers: Arc<ProviderTable>,
        settings: &SynthesisSettings,
    ) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            providers,
            permits: DashMap::new(),
            per_provider: settings.per_provider,
            quota: settings.quota.clone(),
            share: settings.share,
            cache: settings.cache.as_ref().map(Cache::open).transpose()?,
            flights: DashMap::new(),
            budget: Arc::new(Budget::new(settings.share)),
        }))
    }

    /// Takes stock of what the cache holds from earlier runs. Blocks on the disk.
    pub fn scan_cache(&self) -> io::Result<()> {
        self.cache.as_ref().map_or(Ok(()), Cache::scan)
    }

    /// Speech for a text, from the cache where it is, else from the provider. Returns as soon as the request is known
    /// to be possible; failures of the provider come with the sound.
    pub async fn speak(
        self: &Arc<Self>,
        config: SpeechConfig,
        text: &str,
        party: &Party,
    ) -> Result<Speech, SynthesisError> {
        let (provider, credential) = self.provider(&config)?;
        let fingerprint = match &credential {
            Some(credential) => credential.fingerprint(),
            None => provider.credential_fingerprint(),
        };
        let endpoint = provider.endpoint();
        let key = config.cache_key(
            text,
            &Owner {
                endpoint,
                credential: fingerprint,
                tenant: party.tenant().map(TenantId::as_str),
            },
        );
        let kept = self.kept(key, party).await.and_then(kept::unpack);
        if self.cache.is_some() {
            metrics::cache_asked(kept.is_some());
        }
        if let Some((words, sound)) = kept {
            let mut held = Held::of(&self.budget, party);
            held.grow_to(sound.len())?;
            return Ok(Speech {
                cached: true,
                sound: Sound::Kept {
                    words,
                    sound,
                    _held: held,
                },
            });
        }
        let spoken = config.spoken(text)?.text;
        Ok(Speech {
            cached: false,
            sound: Sound::Coming(self.join_or_start(
                key,
                (provider, credential),
                config,
                spoken,
                party,
            )?),
        })
    }

    /// Whether each choice of a config has a provider that takes its credential.
    pub fn check(&self, config: &SpeechConfig) -> Result<(), SynthesisError> {
        let mut choices = config.choices().into_iter();
        choices.try_for_each(|choice| self.provider(&choice).map(drop))
    }

    fn provider(&self, config: &SpeechConfig) -> Result<Provider, SynthesisError> {
        let provider = self
            .providers
            .text_to_speech(&config.provider)
            .ok_or_else(|| {
                let known = self.providers.text_to_speech_slugs().join(", ");
                SynthesisError::UnsupportedProvider {
                    slug: config.provider.chars().take(40).collect(),
                    known,
                }
            })?;
        let field = "tts_config.auth";
        let credential = Credential::of_caller(&config.auth, provider.credential_fields())
            .map_err(|problem| InvalidField { field, problem })?;
        Ok((provider, credential))
    }

    async fn kept(self: &Arc<Self>, key: CacheKey, party: &Party) -> Option<Bytes> {
        let cache = self.cache.as_ref()?;
        if let Some(sound) = cache.in_memory(&key, SystemTime::now()) {
            return Some(sound);
        }
        if self.flights.contains_key(&key) {
            return None;
        }
        let this = Arc::clone(self);
        let party = party.clone();
        let on_disk = move || {
            let cache = this.cache.as_ref()?;
            cache.on_disk(&key, &party, SystemTime::now())
        };
        tokio::task::spawn_blocking(on_disk).await.ok()?
    }

    /// Follows the synthesis of this key that is under way, or starts one.
    fn join_or_start(
        self: &Arc<Self>,
        key: CacheKey,
        provider: Provider,
        config: SpeechConfig,
        text: String,
        party: &Party,
    ) -> Result<FlightReader, SynthesisError> {
        let begin = || {
            let permit = self.quota.take(party)?;
            let flight = Flight::new(&self.budget, party);
            let reader = flight.join();
            Ok::<_, SynthesisError>((flight, reader, (party.clone(), permit)))
        };
        if self.cache.is_none() {
            // Nothing is kept, so nothing is shared: each request is said anew.
            let (flight, reader, counted) = begin()?;
            self.start(None, flight, provider, config, text, counted);
            return Ok(reader);
        }
        match self.flights.entry(key) {
            // One that waits for its turn is followed by its own party only: others have turns of their own.
            Entry::Occupied(flight) if flight.get().leads(party) => Ok(flight.get().join()),
            place => {
                let (flight, reader, counted) = begin()?;
                place.insert(flight.clone());
                self.start(Some(key), flight, provider, config, text, counted);
                Ok(reader)
            }
        }
    }

    fn start(
        self: &Arc<Self>,
        key: Option<CacheKey>,
        flight: Flight,
        provider: Provider,
        config: SpeechConfig,
        text: String,
        (party, permit): (Party, Permit),
    ) {
        let this = Arc::clone(self);
        let run = async move {
            let _counted = permit;
            let under_way = UnderWay {
                synthesizer: this,
                key,
                flight,
            };
            under_way.run(provider, config, text, party).await;
        };
        tokio::spawn(run.in_current_span());
    }

    async fn permit(
        &self,
        slug: &'static str,
        party: &Party,
        patience: Duration,
    ) -> Result<Place, ProviderError> {
        let permits = self
            .permits
            .entry(slug)
            .or_insert_with(|| FairQueue::new(self.per_provider, self.share))
            .value()
            .clone();
        let _waits = metrics::synthesis_waits();
        match timeout(patience, permits.acquire(party)).await {
            Ok(permit) => Ok(permit),
            Err(_) => Err(ProviderError::new(
                slug,
                ErrorKind::Overloaded,
                format!(
                    "{} syntheses are under way and none ended in time",
                    self.per_provider
                ),
            )),
        }
    }
}

/// What makes the format that was asked for of what the provider says.
///
/// Raw `linear16` is what sessions ask for and play while it comes: that is live. Files and G.711 leave by `/speak` and
/// the command line only (sessions encode what they send themselves), and there the offline resampler does it. Whoever
/// asks does not matter, only what is asked for: identical requests share one synthesis and one place in the cache,
/// whether they come from a session or from `/speak`, whole or with `?stream=true`, and have the same bytes. A stream of
/// a file therefore starts up to a block later ([`vivavoce_audio::offline`], 10 ms of a provider's sound at 24 kHz,
/// which most send faster than it is spoken); who cannot wait for that streams `linear16`.
fn converter(
    from: AudioFormat,
    to: AudioFormat,
    speed: f64,
) -> Result<Converter, vivavoce_audio::convert::ConvertError> {
    match to.encoding {
        Encoding::Linear16 => Converter::live(from, to, speed),
        _ => Converter::offline(from, to, speed),
    }
}

/// A flight with its place in the table, which it leaves however it ends.
struct UnderWay {
    synthesizer: Arc<Synthesizer>,
    key: Option<CacheKey>,
    flight: Flight,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // A panic or a stopped runtime is told here; an end that was told before stays.
        self.flight.end(Err(SynthesisError::Abandoned));
        if let Some(key) = self.key {
            // The place may be another's by now: whoever was abandoned gave it up before.
            let flights = &self.synthesizer.flights;
            flights.remove_if(&key, |_, flight| flight.is(&self.flight));
        }
    }
}

impl UnderWay {
    async fn run(&self, provider: Provider, config: SpeechConfig, text: String, party: Party) {
        let own_credential = !config.auth.is_empty();
        let made = self.make(provider, &config, text, party.clone());
        let result = tokio::select! {
            result = made => result,
            () = self.unwanted() => return,
        };
        let result = result.map_err(|error| match error {
            SynthesisError::Provider { error, .. } => SynthesisError::Provider {
                error,
                own_credential,
            },
            other => other,
        });
        match &result {
            Ok(()) => self.finish(&config, &party),
            Err(SynthesisError::Provider { error, .. }) => metrics::provider_failed(error),
            Err(_) => {}
        }
        self.flight.end(result);
    }

    /// Waits until nobody follows, and gives up the place in the table so that nobody can begin to.
    async fn unwanted(&self) {
        loop {
            self.flight.abandoned().await;
            let Some(key) = self.key else { return };
            let mine = |flight: &Flight| flight.is(&self.flight);
            let flights = &self.synthesizer.flights;
            flights.remove_if(&key, |_, flight| mine(flight) && !flight.is_wanted());
            // Where somebody has joined in between, the flight is still in its place, and goes on.
            if !flights.get(&key).is_some_and(|flight| mine(flight.value())) {
                return;
            }
        }
    }

    /// Lets the provider say it, and converts what comes.
    async fn make(
        &self,
        (provider, credential): Provider,
        config: &SpeechConfig,
        text: String,
        party: Party,
    ) -> Result<(), SynthesisError> {
        let slug = provider.slug();
        let failed = |error| SynthesisError::Provider {
            error,
            own_credential: false,
        };
        let deadline = Instant::now() + config.request_timeout;
        let _permit = self
            .synthesizer
            .permit(slug, &party, config.connection_timeout)
            .await
            .map_err(failed)?;
        self.flight.takes_off();
        let speaks = provider.speaks_as(config.voice_id.as_deref(), &config.model);
        let rates = speaks.speaking_rates;
        let native_rate = config.speaking_rate.clamp(*rates.start(), *rates.end());
        let request = TtsRequest {
            party,
            voice_id: config.voice_id.clone(),
            model: config.model.clone(),
            speaking_rate: native_rate,
            preferred: config.format,
            connection_timeout: config.connection_timeout,
            request_timeout: config.request_timeout,
            credential,
        };
        let text = futures_util::stream::once(std::future::ready(text)).boxed();
        let asked = Instant::now();
        let mut silent = true;
        let TtsStream { format, mut events } =
            provider.synthesize(request, text).await.map_err(failed)?;
        let hurry = config.speaking_rate / native_rate;
        let mut converter = converter(format, config.format, hurry)?;
        loop {
            let event = timeout_at(deadline, events.next()).await;
            let event = event.map_err(|_| {
                let waited = config.request_timeout.as_secs();
                failed(ProviderError::new(
                    slug,
                    ErrorKind::Timeout,
                    format!("not finished within {waited} s"),
                ))
            })?;
            match event.transpose().map_err(failed)? {
                Some(TtsEvent::Audio(audio)) => {
                    if std::mem::take(&mut silent) {
                        metrics::provider_began(Task::Tts, slug, asked.elapsed());
                    }
                    self.convert(&mut converter, audio).await?;
                }
                Some(TtsEvent::Word { word, start }) => {
                    // A vendor's time may be as large as it likes; what no clock can hold places nothing.
                    if let Ok(start) = Duration::try_from_secs_f64(start.as_secs_f64() / hurry) {
                        self.flight.word(SpokenWord { word, start });
                    }
                }
                Some(TtsEvent::Done) => {
                    metrics::provider_finished(Task::Tts, slug, asked.elapsed());
                    return self.flight.push(converter.finish().await?);
                }
                None => {
                    let cut = ProviderError::new(
                        slug,
                        ErrorKind::Protocol,
                        "the speech ended before it was complete",
                    );
                    return Err(failed(cut));
                }
            }
        }
    }

    async fn convert(
        &self,
        converter: &mut Converter,
        mut audio: Bytes,
    ) -> Result<(), SynthesisError> {
        while !audio.is_empty() {
            let piece = audio.split_to(audio.len().min(CONVERTED_AT_ONCE));
            self.flight.push(converter.push(&piece).await?)?;
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    /// Completes what could not be known at the beginning and keeps the whole.
    fn finish(&self, config: &SpeechConfig, party: &Party) {
        if config.format.encoding == Encoding::Wav {
            let length: usize = self.flight.chunks().iter().map(Bytes::len).sum();
            self.flight.replace_first(|head| {
                let mut head = head.to_vec();
                wav::patch_length(&mut head, length as u64);
                head.into()
            });
        }
        let (Some(key), Some(cache)) = (self.key, &self.synthesizer.cache) else {
            return;
        };
        let mut chunks = self.flight.chunks();
        chunks.insert(0, kept::pack(&self.flight.words()));
        let now = SystemTime::now();
        cache.keep_in_memory(key, &chunks, now);
        let (synthesizer, party) = (Arc::clone(&self.synthesizer), party.clone());
        // The listeners do not wait for the disk.
        tokio::task::spawn_blocking(move || {
            let Some(cache) = &synthesizer.cache else {
                return;
            };
            if let Err(error) = cache.keep_on_disk(&key, &party, &chunks, now) {
                tracing::warn!(%error, "speech could not be kept in the cache folder");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_quotas::Quotas;

    /// Says so many pieces of so many bytes, all after a while.
    struct Fake {
        after: Duration,
        pieces: usize,
        bytes: usize,
    }

    /// Ten seconds for a short sound.
    const SLOW: Fake = Fake {
        after: Duration::from_secs(10),
        pieces: 1,
        bytes: 480,
    };

    /// Half as much as one answer may hold, at once.
    const LARGE: Fake = Fake {
        after: Duration::ZERO,
        pieces: 32,
        bytes: 1 << 20,
    };

    #[async_trait::async_trait]
    impl TextToSpeech for Fake {
        fn slug(&self) -> &'static str {
            "fake"
        }

        fn speaks(&self) -> vivavoce_seams::Speaks {
            vivavoce_seams::Speaks {
                speaking_rates: 1.0..=1.0,
            }
        }

        async fn synthesize(
            &self,
            request: TtsRequest,
            _: vivavoce_seams::TextStream,
        ) -> Result<TtsStream, ProviderError> {
            tokio::time::sleep(self.after).await;
            let bytes = self.bytes;
            let piece = move || Ok(TtsEvent::Audio(Bytes::from(vec![0; bytes])));
            let said = std::iter::repeat_with(piece).take(self.pieces);
            let said = said.chain([Ok(TtsEvent::Done)]);
            Ok(TtsStream {
                format: request.preferred,
                events: futures_util::stream::iter(said).boxed(),
            })
        }

        async fn voices(&self) -> Result<Vec<vivavoce_seams::Voice>, ProviderError> {
            Ok(Vec::new())
        }
    }

    fn slow(per_provider: usize, cache: Option<CacheSettings>) -> Arc<Synthesizer> {
        let mut providers = ProviderTable::default();
        providers.add_text_to_speech(Arc::new(SLOW));
        let settings = SynthesisSettings {
            cache,
            per_provider,
            quota: Quota::new(vivavoce_quotas::Kind::Syntheses, 1_000, Share::default()),
            share: Share::default(),
        };
        Synthesizer::open(Arc::new(providers), &settings).unwrap()
    }

    fn config() -> SpeechConfig {
        let config = serde_json::json!({"provider": "fake", "model": "", "connection_timeout": 600, "request_timeout": 600});
        let config: TtsConfig = serde_json::from_value(config).unwrap();
        config.check().unwrap()
    }

    fn tenant(id: &str) -> Party {
        Party::Tenant(TenantId::new(id).unwrap())
    }

    /// How long somebody waits for what they ask for.
    async fn waits(synthesizer: &Arc<Synthesizer>, text: &str, party: &Party) -> Duration {
        let asked = Instant::now();
        let mut speech = synthesizer.speak(config(), text, party).await.unwrap();
        speech.whole().await.unwrap();
        asked.elapsed()
    }

    async fn ask(synthesizer: &Arc<Synthesizer>, text: &str, party: &Party) -> Speech {
        let speech = synthesizer.speak(config(), text, party).await.unwrap();
        // It takes its place, or waits.
        tokio::task::yield_now().await;
        speech
    }

    #[tokio::test(start_paused = true)]
    async fn seventy_long_texts_of_one_tenant_do_not_delay_anothers_first_sound() {
        let synthesizer = slow(64, None);
        let greedy = tenant("greedy");
        let mut held = Vec::new();
        for number in 0..200 {
            held.push(ask(&synthesizer, &format!("long text {number}"), &greedy).await);
        }
        let waited = waits(&synthesizer, "hello", &tenant("innocent")).await;
        assert!(waited < Duration::from_secs(11), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_places_are_taken_another_waits_for_one_round() {
        let synthesizer = slow(2, None);
        let greedy = tenant("greedy");
        let mut held = Vec::new();
        for number in 0..100 {
            held.push(ask(&synthesizer, &format!("text {number}"), &greedy).await);
        }
        let waited = waits(&synthesizer, "hello", &tenant("innocent")).await;
        assert!(waited <= Duration::from_secs(20), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_for_the_same_waits_for_no_other_partys_turn() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheSettings {
            path: folder.path().to_owned(),
            ttl: Duration::from_secs(100),
            max_bytes: 100_000,
            memory_bytes: 100_000,
        };
        let synthesizer = slow(2, Some(cache));
        // Both without a tenant, and so with one key for the same text.
        let stranger = Party::Address([192, 0, 2, 1].into());
        let mut held = Vec::new();
        for number in 0..50 {
            held.push(ask(&synthesizer, &format!("text {number}"), &stranger).await);
        }
        held.push(ask(&synthesizer, "hello", &stranger).await);
        let waited = waits(&synthesizer, "hello", &Party::Operator).await;
        assert!(waited <= Duration::from_secs(20), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_too_much_at_once_is_told_the_quota() {
        let synthesizer = slow(2, None);
        let greedy = tenant("greedy");
        let mut held = Vec::new();
        let refused = loop {
            let text = format!("text {}", held.len());
            match synthesizer.speak(config(), &text, &greedy).await {
                Ok(speech) => held.push(speech),
                Err(refused) => break refused,
            }
        };
        assert_eq!(held.len(), 750);
        assert!(refused.to_string().contains("quota syntheses"), "{refused}");
        let innocent = tenant("innocent");
        let said = synthesizer.speak(config(), "hello", &innocent).await;
        assert!(said.is_ok());
        drop(held);
        // Nobody waits for them any more.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let again = synthesizer.speak(config(), "again", &greedy).await;
        assert!(again.is_ok());
    }

    #[tokio::test]
    async fn answers_from_the_cache_that_nobody_reads_leave_memory_for_anothers() {
        let folder = tempfile::tempdir().unwrap();
        let mut providers = ProviderTable::default();
        providers.add_text_to_speech(Arc::new(LARGE));
        let settings = SynthesisSettings {
            cache: Some(CacheSettings {
                path: folder.path().to_owned(),
                ttl: Duration::from_secs(100),
                max_bytes: 1 << 30,
                memory_bytes: 1 << 34,
            }),
            per_provider: 64,
            quota: Quotas::unlimited().syntheses,
            share: Share::default(),
        };
        let synthesizer = Synthesizer::open(Arc::new(providers), &settings).unwrap();
        let (greedy, innocent) = (tenant("greedy"), tenant("innocent"));
        let first = synthesizer.speak(config(), "long", &greedy).await;
        first.unwrap().whole().await.unwrap();
        let mut unread = Vec::new();
        let refused = loop {
            match synthesizer.speak(config(), "long", &greedy).await {
                Ok(mut speech) => {
                    assert!(speech.cached);
                    unread.push((speech.whole().await.unwrap(), speech));
                }
                Err(refused) => break refused,
            }
            assert!(unread.len() < 100, "as many as are asked for");
        };
        assert!(matches!(refused, SynthesisError::Quota(_)), "{refused}");
        let speech = synthesizer.speak(config(), "long", &innocent).await;
        assert!(speech.unwrap().whole().await.is_ok());
        // Read, or given up.
        unread.clear();
        assert!(synthesizer.speak(config(), "long", &greedy).await.is_ok());
    }

    #[tokio::test]
    async fn a_flight_that_ends_late_leaves_its_successor_in_place() {
        let settings = SynthesisSettings {
            cache: None,
            per_provider: 1,
            quota: Quotas::unlimited().syntheses,
            share: Share::default(),
        };
        let synthesizer = Synthesizer::open(Arc::default(), &settings).unwrap();
        let key = CacheKey([7; 32]);
        let under_way = |flight| UnderWay {
            synthesizer: Arc::clone(&synthesizer),
            key: Some(key),
            flight,
        };
        let first = Flight::new(&synthesizer.budget, &Party::Operator);
        let second = Flight::new(&synthesizer.budget, &Party::Operator);
        let reader = second.join();
        synthesizer.flights.insert(key, second.clone());
        // The first gave up its place to the second before it was dropped.
        let late = under_way(first);
        late.unwanted().await;
        drop(late);
        assert!(synthesizer.flights.get(&key).unwrap().is(&second));
        drop(reader);
        let abandoned = under_way(second);
        abandoned.unwanted().await;
        assert!(synthesizer.flights.is_empty());
    }
}
