//! The voices of all providers. Lists are cached for a while, a provider that fails is served from its last good list, and
//! concurrent requests share one look-up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use tokio::time::{Instant, timeout};

use vivavoce_seams::{ErrorKind, ProviderError, ProviderTable, TextToSpeech, Voice};
use vivavoce_telemetry::metrics;

/// How long a list is served without asking again.
const FRESH: Duration = Duration::from_mins(10);
/// How long a provider may take to list its voices.
const PATIENCE: Duration = Duration::from_secs(10);

/// The voices of one provider.
pub type VoiceList = Arc<Vec<Voice>>;
type LookUp = Shared<BoxFuture<'static, Result<VoiceList, ProviderError>>>;

/// Asks for the voices of all providers, or of one. `None` stands for a provider that this server does not have.
#[derive(Debug, Message)]
#[rtype(result = "Result<Option<BTreeMap<&'static str, VoiceList>>, ProviderError>")]
pub struct ListVoices {
    /// A slug; all providers when absent.
    pub provider: Option<String>,
}

/// Forgets what providers have told: they may be others.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct ForgetVoices;

#[derive(Default)]
struct Known {
    good: Option<(Instant, VoiceList)>,
    look_up: Option<LookUp>,
}

pub struct VoiceRegistry {
    providers: Arc<ProviderTable>,
    known: HashMap<&'static str, Known>,
}

impl VoiceRegistry {
    /// A registry with an empty cache.
    pub fn new(providers: Arc<ProviderTable>) -> Self {
        Self {
            providers,
            known: HashMap::new(),
        }
    }

    /// The list of one provider: the one that is fresh, or a look-up that may be shared.
    fn list(&mut self, provider: Arc<dyn TextToSpeech>, now: Instant) -> LookUp {
        let known = self.known.entry(provider.slug()).or_default();
        if let Some((since, list)) = &known.good
            && now.duration_since(*since) < FRESH
        {
            return std::future::ready(Ok(Arc::clone(list))).boxed().shared();
        }
        known
            .look_up
            .get_or_insert_with(|| look_up(provider).boxed().shared())
            .clone()
    }

    /// What a look-up brought, or the last good list instead of a failure.
    fn settle(
        &mut self,
        slug: &'static str,
        outcome: Result<VoiceList, ProviderError>,
        now: Instant,
    ) -> Result<VoiceList, ProviderError> {
        let known = self.known.entry(slug).or_default();
        known.look_up = None;
        if let Err(error) = &outcome {
            metrics::provider_failed(error);
        }
        match (outcome, &known.good) {
            (Ok(list), Some((_, same))) if Arc::ptr_eq(&list, same) => Ok(list),
            (Ok(list), _) => {
                known.good = Some((now, Arc::clone(&list)));
                Ok(list)
            }
            (Err(error), Some((_, last))) => {
                tracing::warn!(provider = slug, %error, "voices come from the last good list");
                Ok(Arc::clone(last))
            }
            (Err(error), None) => Err(error),
        }
    }
}

async fn look_up(provider: Arc<dyn TextToSpeech>) -> Result<VoiceList, ProviderError> {
    let late = |_| {
        let message = format!("no list of voices within {} s", PATIENCE.as_secs());
        ProviderError::new(provider.slug(), ErrorKind::Timeout, message)
    };
    timeout(PATIENCE, provider.voices())
        .await
        .map_err(late)?
        .map(Arc::new)
}

impl Actor for VoiceRegistry {
    type Context = Context<Self>;
}

impl Handler<ForgetVoices> for VoiceRegistry {
    type Result = ();

    fn handle(&mut self, _: ForgetVoices, _: &mut Context<Self>) {
        self.known.clear();
    }
}

impl Handler<ListVoices> for VoiceRegistry {
    type Result = ResponseActFuture<Self, <ListVoices as Message>::Result>;

    fn handle(&mut self, message: ListVoices, _: &mut Context<Self>) -> Self::Result {
        let wanted = match message.provider {
            None => self.providers.all_text_to_speech(),
            Some(slug) => self.providers.text_to_speech(&slug).into_iter().collect(),
        };
        if wanted.is_empty() {
            return Box::pin(std::future::ready(Ok(None)).into_actor(self));
        }
        let now = Instant::now();
        let look_ups = wanted.into_iter().map(|provider| {
            let slug = provider.slug();
            self.list(provider, now).map(move |outcome| (slug, outcome))
        });
        let look_ups = join_all(look_ups.collect::<Vec<_>>());
        Box::pin(look_ups.into_actor(self).map(|outcomes, registry, _| {
            let now = Instant::now();
            let mut lists = BTreeMap::new();
            for (slug, outcome) in outcomes {
                let list = registry.settle(slug, outcome, now)?;
                // A provider without voices (no engine, no credential) is absent.
                if !list.is_empty() {
                    lists.insert(slug, list);
                }
            }
            Ok(Some(lists))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use vivavoce_seams::{Speaks, TextStream, TtsRequest, TtsStream};

    /// A provider whose list-th look-up answers what the script says.
    struct Scripted {
        answers: Vec<Result<&'static str, ErrorKind>>,
        asked: AtomicUsize,
    }

    #[async_trait]
    impl TextToSpeech for Scripted {
        fn slug(&self) -> &'static str {
            "scripted"
        }
        fn speaks(&self) -> Speaks {
            Speaks {
                speaking_rates: 1.0..=1.0,
            }
        }
        async fn synthesize(
            &self,
            _: TtsRequest,
            _: TextStream,
        ) -> Result<TtsStream, ProviderError> {
            Err(ProviderError::new(
                "scripted",
                ErrorKind::Unavailable,
                "only lists voices",
            ))
        }
        async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let answer = self.answers[self.asked.fetch_add(1, SeqCst)];
            let voice = |id: &str| Voice {
                id: id.to_owned(),
                name: String::new(),
                language: "en-US".to_owned(),
                languages: Vec::new(),
                gender: String::new(),
                accent: String::new(),
                sample: String::new(),
                sample_rates: Vec::new(),
                tags: Vec::new(),
            };
            answer
                .map(|id| vec![voice(id)])
                .map_err(|kind| ProviderError::new("scripted", kind, "down"))
        }
    }

    fn registry(
        answers: Vec<Result<&'static str, ErrorKind>>,
    ) -> (Addr<VoiceRegistry>, Arc<Scripted>) {
        let provider = Arc::new(Scripted {
            answers,
            asked: AtomicUsize::new(0),
        });
        let mut table = ProviderTable::default();
        table.add_text_to_speech(provider.clone());
        (VoiceRegistry::new(Arc::new(table)).start(), provider)
    }

    async fn ask(registry: &Addr<VoiceRegistry>) -> Result<String, ErrorKind> {
        let lists = registry.send(ListVoices { provider: None }).await.unwrap();
        lists
            .map(|lists| lists.unwrap()["scripted"][0].id.clone())
            .map_err(|error| error.kind)
    }

    #[actix::test]
    async fn callers_at_the_same_time_share_one_look_up_and_its_list_is_kept_for_ten_minutes() {
        tokio::time::pause();
        let (registry, provider) = registry(vec![Ok("one"), Ok("two")]);
        let (first, second) = tokio::join!(ask(&registry), ask(&registry));
        assert_eq!(
            (first, second),
            (Ok("one".to_owned()), Ok("one".to_owned()))
        );
        tokio::time::advance(FRESH - Duration::from_secs(1)).await;
        assert_eq!(ask(&registry).await, Ok("one".to_owned()));
        assert_eq!(provider.asked.load(SeqCst), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ask(&registry).await, Ok("two".to_owned()));
    }

    #[actix::test]
    async fn a_provider_that_fails_is_served_from_its_last_good_list() {
        tokio::time::pause();
        let down = Err(ErrorKind::Unavailable);
        let (registry, _) = registry(vec![down, Ok("one"), down, Ok("two")]);
        assert_eq!(ask(&registry).await, Err(ErrorKind::Unavailable));
        assert_eq!(ask(&registry).await, Ok("one".to_owned()));
        tokio::time::advance(FRESH).await;
        assert_eq!(ask(&registry).await, Ok("one".to_owned()));
        assert_eq!(ask(&registry).await, Ok("two".to_owned()));
    }
}
