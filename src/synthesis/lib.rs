//! One-shot speech synthesis: text in, encoded audio out. `/speak`, the command line and sessions all use it. Pacing,
//! playback and barge-in belong to sessions; vendors are behind [`vivavoce_seams::TextToSpeech`].
//!
//! # What happens to a request
//!
//! 1. [`TtsConfig`], as it is on the wire, is validated into a [`SpeechConfig`] with all defaults filled in.
//! 2. The cache is consulted. The key covers everything that affects the audio (text, voice, format, rate,
//!    pronunciations) and who pays and owns it (endpoint, credential, tenant), so a hit is byte for byte what a synthesis
//!    would give, and no tenant hears another's text.
//! 3. On a miss, identical concurrent requests share one synthesis, which the readers follow from its first chunk. It is
//!    cancelled when the last reader is gone.
//! 4. The provider's audio is converted to the requested format and speed, and the complete result is cached in memory
//!    and on disk. Results of failed syntheses are never cached.
//!
//! Providers may report when words begin. Pronunciations replace words before the text is sent, so [`SpokenText`] maps
//! reported words back to the client's text.
//!
//! # Bounds
//!
//! A text has at most 32 KiB, the audio of one request 64 MiB, and all audio in memory together 512 MiB, with a fair
//! share per party. Each provider has a limited number of concurrent syntheses (`limits.syntheses_per_provider`), for
//! which parties take turns, and waiting is bounded by the request's connection timeout. The cache is bounded by size
//! and age; whoever uses most of it gives up its oldest entries first.
//!
//! # Example
//!
//! ```
//! use vivavoce_synthesis::TtsConfig;
//!
//! let config: TtsConfig = serde_json::from_str(
//!     r#"{"provider": "local", "model": "", "speaking_rate": 1.25,
//!         "pronunciations": [{"word": "SFU", "pronunciation": "S F U"}]}"#,
//! )
//! .unwrap();
//! let config = config.check().unwrap();
//! assert_eq!(config.format.layout.rate.hz(), 24_000);
//! assert_eq!(config.spoken("Our SFU forwards it.").unwrap().text, "Our S F U forwards it.");
//!
//! let missing: TtsConfig = serde_json::from_str(r#"{"model": ""}"#).unwrap();
//! assert_eq!(missing.check().unwrap_err().to_string(), "tts_config.provider: is required");
//! ```

mod alignment;
mod cache;
mod cache_entry;
mod pronunciation;
mod request;
mod single_flight;

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
use vivavoce_core::ssml::Ssml;
use vivavoce_seams::{
    Credential, ErrorKind, ProviderError, ProviderTable, TakesSsml, TextToSpeech, TtsEvent,
    TtsRequest, TtsStream,
};

use vivavoce_quotas::{FairQueue, Party, Permit, Quota, Refused, Share, Slot};
use vivavoce_telemetry::metrics::{self, Task};

pub use alignment::SpokenText;
use cache::Cache;
pub use cache::CacheSettings;
pub use request::{
    CacheKey, InvalidField, MAX_TEXT_BYTES, Owner, SpeechConfig, TextType, TtsConfig,
};
use single_flight::{Budget, Flight, MemoryReservation};
pub use single_flight::{FlightReader, SpokenWord};

/// Bytes of a provider's audio that are converted before yielding to other tasks: at most 85 ms at 24 kHz.
const MAX_CONVERTED_PER_POLL: usize = 4096;

/// Why a synthesis failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SynthesisError {
    /// A field of the request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// There is no provider with this slug.
    #[error("there is no text-to-speech provider {slug:?}; this server has: {known}")]
    UnsupportedProvider {
        /// The requested slug.
        slug: String,
        /// The available slugs.
        known: String,
    },
    /// The provider failed.
    #[error("{error}")]
    Provider {
        /// The failure.
        error: ProviderError,
        /// Whether the caller's own credential was used.
        own_credential: bool,
    },
    /// The audio is longer than one request may produce.
    #[error(
        "the speech is larger than {limit} bytes; ask for a shorter text, a lower rate or a compressed format"
    )]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A quota is used up.
    #[error(transparent)]
    Quota(#[from] Refused),
    /// The memory for audio is used up.
    #[error("too much speech is being synthesised at the moment; try again later")]
    NoMemory,
    /// The audio cannot be converted to the requested format.
    #[error("{0}")]
    Conversion(String),
    /// The producer has gone.
    #[error("the synthesis was abandoned")]
    Abandoned,
}

impl From<vivavoce_audio::convert::ConvertError> for SynthesisError {
    fn from(error: vivavoce_audio::convert::ConvertError) -> Self {
        Self::Conversion(error.to_string())
    }
}

/// Limits of the synthesiser.
#[derive(Debug, Clone)]
pub struct SynthesisSettings {
    /// The cache; `None` disables both caching and request coalescing.
    pub cache: Option<CacheSettings>,
    /// Concurrent syntheses per provider.
    pub per_provider: usize,
    /// Syntheses in total, including waiting ones.
    pub quota: Quota,
    /// The share of the slots and of the cache that one party may use.
    pub share: Share,
}

/// The synthesiser.
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

/// A provider, and the caller's own credential for it, if any.
type Provider = (Arc<dyn TextToSpeech>, Option<Credential>);

/// What is said.
enum Given {
    Text(String),
    Document(Ssml),
}

/// The requested speech. The memory of its audio is counted as long as this exists.
#[derive(Debug)]
pub struct Speech {
    /// Whether it comes from the cache.
    pub cached: bool,
    sound: Sound,
}

#[derive(Debug)]
enum Sound {
    /// From the cache.
    Cached {
        words: Vec<SpokenWord>,
        sound: Bytes,
        _held: MemoryReservation,
    },
    Streaming(FlightReader),
}

impl Speech {
    /// The whole audio; waits for the end of the synthesis.
    pub async fn whole(&mut self) -> Result<Vec<Bytes>, SynthesisError> {
        match &mut self.sound {
            Sound::Cached { sound, .. } => Ok(vec![std::mem::take(sound)]),
            Sound::Streaming(reader) => reader.whole().await,
        }
    }

    /// The word timings known by now, from index `known` on.
    pub fn words(&self, known: usize) -> Vec<SpokenWord> {
        match &self.sound {
            Sound::Cached { words, .. } => words.get(known..).unwrap_or_default().to_vec(),
            Sound::Streaming(reader) => reader.words(known),
        }
    }

    /// The next chunk as soon as it is available; `None` at the end of complete speech.
    pub async fn next(&mut self) -> Option<Result<Bytes, SynthesisError>> {
        match &mut self.sound {
            Sound::Cached { sound, .. } if sound.is_empty() => None,
            Sound::Cached { sound, .. } => Some(Ok(std::mem::take(sound))),
            Sound::Streaming(reader) => reader.next().await,
        }
    }
}

impl Synthesizer {
    /// A synthesiser that uses these providers.
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

    /// Counts what the cache contains from earlier runs. Blocks on the disk.
    pub fn scan_cache(&self) -> io::Result<()> {
        self.cache.as_ref().map_or(Ok(()), Cache::scan)
    }

    /// What the provider of a config takes of SSML.
    pub fn takes_ssml(&self, config: &SpeechConfig) -> Option<TakesSsml> {
        let provider = self.providers.text_to_speech(&config.provider)?;
        provider.takes_ssml()
    }

    /// Checks that the provider of a config takes this document.
    pub fn check_ssml(&self, config: &SpeechConfig, document: &Ssml) -> Result<(), InvalidField> {
        let slug = &config.provider;
        let Some(takes) = self.takes_ssml(config) else {
            let all = self.providers.text_to_speech_slugs().into_iter();
            let take = |slug: &&str| {
                let provider = self.providers.text_to_speech(slug);
                provider.is_some_and(|provider| provider.takes_ssml().is_some())
            };
            let others: Vec<_> = all.filter(take).collect();
            let problem = match &others[..] {
                [] => format!("{slug} takes no SSML, nor does another provider of this server"),
                others => format!("{slug} takes no SSML; these do: {}", others.join(", ")),
            };
            let field = "text_type";
            return Err(InvalidField { field, problem });
        };
        let (bytes, most) = (document.document().len(), takes.bytes);
        if bytes > most {
            let problem = format!("{slug} takes documents of {most} bytes, this has {bytes}");
            let field = "text";
            return Err(InvalidField { field, problem });
        }
        Ok(())
    }

    /// Synthesises a document of SSML as [`speak`](Self::speak) does a text.
    pub async fn speak_ssml(
        self: &Arc<Self>,
        config: SpeechConfig,
        document: &Ssml,
        party: &Party,
    ) -> Result<Speech, SynthesisError> {
        self.check_ssml(&config, document)?;
        self.speak_given(config, Given::Document(document.clone()), party)
            .await
    }

    /// Synthesises a text, or takes it from the cache. Returns as soon as the request is known to be valid; provider
    /// failures are reported when the audio is read.
    pub async fn speak(
        self: &Arc<Self>,
        config: SpeechConfig,
        text: &str,
        party: &Party,
    ) -> Result<Speech, SynthesisError> {
        self.speak_given(config, Given::Text(text.to_owned()), party)
            .await
    }

    async fn speak_given(
        self: &Arc<Self>,
        config: SpeechConfig,
        given: Given,
        party: &Party,
    ) -> Result<Speech, SynthesisError> {
        let (provider, credential) = self.provider(&config)?;
        let fingerprint = match &credential {
            Some(credential) => credential.fingerprint(),
            None => provider.credential_fingerprint(),
        };
        let endpoint = provider.endpoint();
        let owner = Owner {
            endpoint,
            credential: fingerprint,
            tenant: party.tenant().map(TenantId::as_str),
        };
        let key = match &given {
            Given::Text(text) => config.cache_key(text, &owner),
            Given::Document(document) => config.cache_key(&document.document(), &owner).of_ssml(),
        };
        let kept = self.cached(key, party).await.and_then(cache_entry::unpack);
        if self.cache.is_some() {
            metrics::cache_asked(kept.is_some());
        }
        if let Some((words, sound)) = kept {
            let mut held = MemoryReservation::of(&self.budget, party);
            held.grow_to(sound.len())?;
            return Ok(Speech {
                cached: true,
                sound: Sound::Cached {
                    words,
                    sound,
                    _held: held,
                },
            });
        }
        let spoken = match given {
            Given::Text(text) => Given::Text(config.spoken(&text)?.text),
            Given::Document(document) => Given::Document(config.spoken_ssml(&document)?.0),
        };
        Ok(Speech {
            cached: false,
            sound: Sound::Streaming(self.join_or_start(
                key,
                (provider, credential),
                config,
                spoken,
                party,
            )?),
        })
    }

    /// Checks that the provider and each fallback of a config exist and accept its credential.
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

    async fn cached(self: &Arc<Self>, key: CacheKey, party: &Party) -> Option<Bytes> {
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

    /// Joins the synthesis with this key that is in progress, or starts one.
    fn join_or_start(
        self: &Arc<Self>,
        key: CacheKey,
        provider: Provider,
        config: SpeechConfig,
        text: Given,
        party: &Party,
    ) -> Result<FlightReader, SynthesisError> {
        let begin = || {
            let permit = self.quota.take(party)?;
            let flight = Flight::new(&self.budget, party);
            let reader = flight.join();
            Ok::<_, SynthesisError>((flight, reader, (party.clone(), permit)))
        };
        if self.cache.is_none() {
            // Without a cache, requests are not coalesced either.
            let (flight, reader, counted) = begin()?;
            self.start(None, flight, provider, config, text, counted);
            return Ok(reader);
        }
        match self.flights.entry(key) {
            // A synthesis that waits in the queue is joined only by its own party: others have their own turn.
            Entry::Occupied(flight) if flight.get().may_be_joined_by(party) => {
                Ok(flight.get().join())
            }
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
        text: Given,
        (party, permit): (Party, Permit),
    ) {
        let this = Arc::clone(self);
        let run = async move {
            let _counted = permit;
            let running = RunningSynthesis {
                synthesizer: this,
                key,
                flight,
            };
            running.run(provider, config, text, party).await;
        };
        tokio::spawn(run.in_current_span());
    }

    async fn permit(
        &self,
        slug: &'static str,
        party: &Party,
        patience: Duration,
    ) -> Result<Slot, ProviderError> {
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
                    "all {} synthesis slots of this provider were busy until the timeout",
                    self.per_provider
                ),
            )),
        }
    }
}

/// The converter from the provider's format to the requested one.
///
/// Raw `linear16` is what sessions request and play while it arrives, so it is converted with the low-latency
/// resampler. Files and G.711 are only requested by `/speak` and the command line (sessions encode what they send
/// themselves), so the offline resampler converts them. Only the format decides, not the caller: identical requests
/// share one synthesis and one cache entry, whether they come from a session or from `/speak`, with or without
/// `?stream=true`, and get the same bytes. A streamed file therefore starts up to one block later
/// ([`vivavoce_audio::offline`]: 10 ms of audio at 24 kHz, which most providers send faster than real time); callers
/// who need less latency can stream `linear16`.
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

/// A synthesis in progress with its entry in the table, which is removed however the synthesis ends.
struct RunningSynthesis {
    synthesizer: Arc<Synthesizer>,
    key: Option<CacheKey>,
    flight: Flight,
}

impl Drop for RunningSynthesis {
    fn drop(&mut self) {
        // Reports a panic or a stopped runtime; has no effect if the end was reported before.
        self.flight.end(Err(SynthesisError::Abandoned));
        if let Some(key) = self.key {
            // The entry may be another synthesis by now, if this one was abandoned before.
            let flights = &self.synthesizer.flights;
            flights.remove_if(&key, |_, flight| flight.same_as(&self.flight));
        }
    }
}

impl RunningSynthesis {
    async fn run(&self, provider: Provider, config: SpeechConfig, text: Given, party: Party) {
        let own_credential = !config.auth.is_empty();
        let made = self.make(provider, &config, text, party.clone());
        let result = tokio::select! {
            result = made => result,
            () = self.without_readers() => return,
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

    /// Waits until there are no readers, and removes the table entry so that nobody can join any more.
    async fn without_readers(&self) {
        loop {
            self.flight.abandoned().await;
            let Some(key) = self.key else { return };
            let mine = |flight: &Flight| flight.same_as(&self.flight);
            let flights = &self.synthesizer.flights;
            flights.remove_if(&key, |_, flight| mine(flight) && !flight.has_readers());
            // If somebody joined in between, the entry is still there, and the synthesis continues.
            if !flights.get(&key).is_some_and(|flight| mine(flight.value())) {
                return;
            }
        }
    }

    /// Runs the provider and converts its audio.
    async fn make(
        &self,
        (provider, credential): Provider,
        config: &SpeechConfig,
        text: Given,
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
        self.flight.leave_queue();
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
        let asked = Instant::now();
        let mut silent = true;
        let begun = match text {
            Given::Text(text) => {
                let text = futures_util::stream::once(std::future::ready(text)).boxed();
                provider.synthesize(request, text).await
            }
            Given::Document(document) => provider.synthesize_ssml(request, &document).await,
        };
        let TtsStream { format, mut events } = begun.map_err(failed)?;
        let extra_speed = config.speaking_rate / native_rate;
        let mut converter = converter(format, config.format, extra_speed)?;
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
                    // Providers may report absurdly large offsets; a word without a valid time is dropped.
                    if let Ok(start) =
                        Duration::try_from_secs_f64(start.as_secs_f64() / extra_speed)
                    {
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
            let piece = audio.split_to(audio.len().min(MAX_CONVERTED_PER_POLL));
            self.flight.push(converter.push(&piece).await?)?;
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    /// Patches the header, whose length field could not be known at the start, and caches the result.
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
        chunks.insert(0, cache_entry::pack(&self.flight.words()));
        let now = SystemTime::now();
        cache.keep_in_memory(key, &chunks, now);
        let (synthesizer, party) = (Arc::clone(&self.synthesizer), party.clone());
        // Readers do not wait for the disk.
        tokio::task::spawn_blocking(move || {
            let Some(cache) = &synthesizer.cache else {
                return;
            };
            if let Err(error) = cache.keep_on_disk(&key, &party, &chunks, now) {
                tracing::warn!(%error, "a synthesis could not be written to the cache");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_quotas::Quotas;

    /// A provider that produces `pieces` chunks of the same size after a delay.
    struct Fake {
        after: Duration,
        pieces: usize,
        bytes: usize,
    }

    /// Ten seconds for a short text.
    const SLOW: Fake = Fake {
        after: Duration::from_secs(10),
        pieces: 1,
        bytes: 480,
    };

    /// Half of the maximum size, at once.
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

    /// A request's connection timeout.
    async fn waits(synthesizer: &Arc<Synthesizer>, text: &str, party: &Party) -> Duration {
        let asked = Instant::now();
        let mut speech = synthesizer.speak(config(), text, party).await.unwrap();
        speech.whole().await.unwrap();
        asked.elapsed()
    }

    async fn ask(synthesizer: &Arc<Synthesizer>, text: &str, party: &Party) -> Speech {
        let speech = synthesizer.speak(config(), text, party).await.unwrap();
        // Takes the slot, or waits.
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
        // Both have no tenant, and therefore the same key for the same text.
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
        // No readers are left.
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
        // Read completely, or dropped.
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
        let running = |flight| RunningSynthesis {
            synthesizer: Arc::clone(&synthesizer),
            key: Some(key),
            flight,
        };
        let first = Flight::new(&synthesizer.budget, &Party::Operator);
        let second = Flight::new(&synthesizer.budget, &Party::Operator);
        let reader = second.join();
        synthesizer.flights.insert(key, second.clone());
        // The first had removed its entry in favour of the second before it was dropped.
        let late = running(first);
        late.without_readers().await;
        drop(late);
        assert!(synthesizer.flights.get(&key).unwrap().same_as(&second));
        drop(reader);
        let abandoned = running(second);
        abandoned.without_readers().await;
        assert!(synthesizer.flights.is_empty());
    }
}
