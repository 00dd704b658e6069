//! Connections to the store live on one runtime, that on which the store was opened. The client would have each live where the
//! request was made that needed it first, and lends it to all others: whoever uploads while a thread of the server stops, with a
//! connection of that thread's, would fail.

use aws_sdk_s3::config::{HttpClient, RuntimeComponents, SharedHttpClient};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// What asks on one runtime, whoever calls it.
#[derive(Debug)]
pub(super) struct OnRuntime<T> {
    inner: T,
    runtime: Handle,
}

impl OnRuntime<SharedHttpClient> {
    /// On the runtime of the caller.
    pub(super) fn current(inner: SharedHttpClient) -> SharedHttpClient {
        let runtime = Handle::current();
        SharedHttpClient::new(Self { inner, runtime })
    }
}

impl HttpClient for OnRuntime<SharedHttpClient> {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(OnRuntime {
            inner: self.inner.http_connector(settings, components),
            runtime: self.runtime.clone(),
        })
    }
}

impl HttpConnector for OnRuntime<SharedHttpConnector> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let inner = self.inner.clone();
        let asking = self.runtime.spawn(async move { inner.call(request).await });
        let asking = AbortOnDropHandle::new(asking);
        HttpConnectorFuture::new(async move {
            // It ends with its runtime.
            let ended = |error| Err(ConnectorError::other(Box::new(error), None));
            asking.await.unwrap_or_else(ended)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_s3::Client;
    use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
    use aws_smithy_http_client::Builder;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    /// A store without anything in it, and how many connections it has had.
    fn empty_store() -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    let heads = BufReader::new(stream.try_clone().unwrap()).lines();
                    for line in heads.map_while(Result::ok) {
                        if line.is_empty() {
                            let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
                            (&stream).write_all(answer).unwrap();
                        }
                    }
                });
            }
        });
        (url, connections)
    }

    fn client(url: &str, http: SharedHttpClient) -> Client {
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(Credentials::new("access", "secret", None, None, "test"))
            .endpoint_url(url)
            .force_path_style(true)
            .http_client(http);
        Client::from_conf(config.build())
    }

    async fn looks(client: Client) -> bool {
        let asked = client.head_object().bucket("b").key("k").send().await;
        asked.unwrap_err().into_service_error().is_not_found()
    }

    /// How many connections are made by a thread that asks and ends, and by whoever asks behind it.
    fn connections(of: impl FnOnce(SharedHttpClient) -> SharedHttpClient) -> usize {
        let (url, connections) = empty_store();
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap()
        };
        let main = runtime();
        main.block_on(async {
            let client = client(&url, of(Builder::new().build_http()));
            let worker = thread::spawn({
                let client = client.clone();
                move || runtime().block_on(looks(client))
            });
            let ended = tokio::task::spawn_blocking(move || worker.join().unwrap());
            assert!(ended.await.unwrap());
            assert!(looks(client).await);
        });
        connections.load(Ordering::Relaxed)
    }

    #[test]
    fn a_connection_outlives_the_thread_that_needed_it_first() {
        assert_eq!(connections(OnRuntime::current), 1);
        // The library's own does not, which is why this is here.
        assert_eq!(connections(|http| http), 2);
    }
}
