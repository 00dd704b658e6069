//! A form with a file (RFC 7578). The file goes to disk as it arrives, and its name is gone before it has one byte: whatever
//! becomes of the request, or of the server, nothing is left of it.

use std::cell::RefCell;
use std::fs::File;
use std::future::ready;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_multipart::{Multipart, MultipartError};
use actix_web::error::PayloadError;
use actix_web::web::Bytes;
use actix_web::{HttpRequest, dev};
use futures_util::{StreamExt, stream};
use tokio::io::AsyncWriteExt;
use tokio::time::{Duration, Instant, Sleep, sleep_until};

use super::invalid;
use crate::body::{BodyError, declared_length};
use crate::connections::AwaitedClient;
use crate::entries::{Reads, bounds};
use crate::error::{ApiError, Code};
use vivavoce_telemetry::metrics;

/// The largest file, as OpenAI has it.
pub(super) const FILE_BYTES: usize = 25 << 20;
/// The largest form: the file, and all that is around it.
pub(super) const FORM_BYTES: usize = FILE_BYTES + (1 << 20);
/// All other fields together, and how many there may be.
const TEXT_BYTES: usize = 64 << 10;
const FIELDS: usize = 64;
/// How long a form may take whatever its rate, and the least rate from then on.
const GRACE: Duration = Duration::from_secs(10);
const LEAST_BYTES_PER_SECOND: u64 = 16 << 10;

/// What was received.
pub(super) struct Form {
    /// At its end.
    pub(super) file: File,
    /// In the order in which they came; `[]` behind the name of one of a list is left out.
    pub(super) fields: Vec<(String, String)>,
}

fn unwritable(error: &std::io::Error) -> ApiError {
    tracing::error!(%error, "a file that was sent cannot be kept on disk");
    ApiError::new(
        Code::StorageError,
        "file: cannot be kept on this server's disk",
    )
}

/// Receives a form; its file is kept in this folder.
pub(super) async fn receive(
    request: &HttpRequest,
    payload: dev::Payload,
    folder: &Path,
) -> Result<Form, ApiError> {
    let Some(Reads::Upload { bytes, within }) = bounds(request).map(|bounds| bounds.reads) else {
        return Err(BodyError::Undeclared.into());
    };
    if declared_length(request).is_some_and(|length| length > bytes as u64) {
        return Err(BodyError::TooLarge { limit: bytes }.into());
    }
    let _awaited = AwaitedClient::of_upload(request);
    let body = Rc::new(RefCell::new(Paced::new(payload, bytes, within)));
    let chunks = || {
        let body = Rc::clone(&body);
        stream::poll_fn(move |context| body.borrow_mut().poll_next(context))
    };
    let form = read(Multipart::new(request.headers(), chunks()), folder).await;
    if form.is_ok() {
        // What is behind the form, a line end as a rule, would be in the way of the next request.
        chunks().for_each(|_| ready(())).await;
    }
    let failed = body.borrow_mut().failed.take();
    form.map_err(|error| failed.unwrap_or(error))
}

async fn read(mut parts: Multipart, folder: &Path) -> Result<Form, ApiError> {
    let (mut file, mut fields, mut text_bytes) = (None, Vec::new(), 0);
    while let Some(part) = parts.next().await {
        let mut part = part.map_err(|error| misfit(&error))?;
        let name = part.name().unwrap_or_default().to_owned();
        if name == "file" {
            if file.is_some() {
                return Err(invalid("file: is given more than once"));
            }
            let temporary = tempfile::tempfile_in(folder).map_err(|error| unwritable(&error))?;
            let mut kept = tokio::fs::File::from_std(temporary);
            let mut size = 0;
            while let Some(chunk) = part.next().await {
                let chunk = chunk.map_err(|error| misfit(&error))?;
                size += chunk.len();
                if size > FILE_BYTES {
                    let problem = format!("file: is larger than {FILE_BYTES} bytes");
                    return Err(ApiError::new(Code::PayloadTooLarge, problem));
                }
                let written = kept.write_all(&chunk).await;
                written.map_err(|error| unwritable(&error))?;
            }
            kept.flush().await.map_err(|error| unwritable(&error))?;
            file = Some(kept.into_std().await);
            continue;
        }
        let text = part.bytes(TEXT_BYTES - text_bytes).await;
        let too_much = |_| {
            let problem = format!("the fields beside file have more than {TEXT_BYTES} bytes");
            ApiError::new(Code::PayloadTooLarge, problem)
        };
        let text = text.map_err(too_much)?.map_err(|error| misfit(&error))?;
        text_bytes += text.len();
        let Ok(text) = String::from_utf8(text.to_vec()) else {
            return Err(invalid(format!("{}: is not UTF-8", shown(&name))));
        };
        if fields.len() == FIELDS {
            return Err(invalid(format!("the form has more than {FIELDS} fields")));
        }
        let name = name.strip_suffix("[]").unwrap_or(&name).to_owned();
        fields.push((name, text));
    }
    match file {
        Some(file) => Ok(Form { file, fields }),
        None => Err(invalid("file: is required")),
    }
}

/// The name of a field for an error.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(40).collect()
}

fn misfit(error: &MultipartError) -> ApiError {
    match error {
        MultipartError::ContentTypeMissing
        | MultipartError::ContentTypeParse
        | MultipartError::ContentTypeIncompatible => {
            let problem = "the body must be a form, with content type multipart/form-data";
            ApiError::new(Code::UnsupportedMediaType, problem)
        }
        error => invalid(format!("the form cannot be read: {error}")),
    }
}

/// The body of a request, which must not be too long, too late or too slow.
struct Paced {
    payload: dev::Payload,
    begun: Instant,
    due: Pin<Box<Sleep>>,
    received: usize,
    bytes: usize,
    within: Duration,
    ended: bool,
    /// Why it has failed: the parser of the form does not tell.
    failed: Option<ApiError>,
}

impl Paced {
    fn new(payload: dev::Payload, bytes: usize, within: Duration) -> Self {
        let begun = Instant::now();
        Self {
            payload,
            begun,
            due: Box::pin(sleep_until(begun + GRACE)),
            received: 0,
            bytes,
            within,
            ended: false,
            failed: None,
        }
    }

    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, PayloadError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = match self.payload.poll_next_unpin(context) {
            Poll::Ready(next) => next,
            Poll::Pending if self.due.as_mut().poll(context).is_pending() => return Poll::Pending,
            Poll::Pending => {
                metrics::body_cut_off();
                return self.fail(invalid(format!(
                    "the form came slower than {LEAST_BYTES_PER_SECOND} bytes a second, or did not arrive within {} s",
                    self.within.as_secs()
                )));
            }
        };
        let chunk = match next {
            Some(Ok(chunk)) => chunk,
            None => {
                self.ended = true;
                return Poll::Ready(None);
            }
            Some(Err(PayloadError::Overflow)) => return self.too_large(),
            Some(Err(_)) => return self.fail(BodyError::Broken.into()),
        };
        self.received += chunk.len();
        if self.received > self.bytes {
            return self.too_large();
        }
        let earned = self.received as u64 * 1_000 / LEAST_BYTES_PER_SECOND;
        let patience = (GRACE + Duration::from_millis(earned)).min(self.within);
        self.due.as_mut().reset(self.begun + patience);
        Poll::Ready(Some(Ok(chunk)))
    }

    fn too_large(&mut self) -> Poll<Option<Result<Bytes, PayloadError>>> {
        self.fail(BodyError::TooLarge { limit: self.bytes }.into())
    }

    fn fail(&mut self, error: ApiError) -> Poll<Option<Result<Bytes, PayloadError>>> {
        self.ended = true;
        self.failed = Some(error);
        Poll::Ready(Some(Err(PayloadError::Incomplete(None))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::{Bounds, Callers};
    use actix_web::HttpMessage;
    use actix_web::http::header::CONTENT_TYPE;
    use actix_web::test::TestRequest;
    use std::io::{Read, Seek};

    const WITHIN: Duration = Duration::from_mins(10);

    fn request() -> HttpRequest {
        let request = TestRequest::default()
            .insert_header((CONTENT_TYPE, "multipart/form-data; boundary=x"))
            .to_http_request();
        request.extensions_mut().insert(Bounds {
            callers: Callers::Authenticated,
            reads: Reads::Upload {
                bytes: FORM_BYTES,
                within: WITHIN,
            },
            counted_by: "",
        });
        request
    }

    fn part(name: &str, more: &str, content: &str) -> String {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{content}\r\n")
    }

    /// What comes in pieces of this length at this interval, and then nothing more or no end.
    fn coming(text: &str, piece: usize, every: Duration, ends: bool) -> dev::Payload {
        let pieces: Vec<Bytes> = text
            .as_bytes()
            .chunks(piece)
            .map(Bytes::copy_from_slice)
            .collect();
        let chunks = stream::unfold(pieces.into_iter(), move |mut pieces| async move {
            tokio::time::sleep(every).await;
            match pieces.next() {
                Some(piece) => Some((Ok::<_, PayloadError>(piece), pieces)),
                None if ends => None,
                None => std::future::pending().await,
            }
        });
        dev::Payload::Stream {
            payload: Box::pin(chunks),
        }
    }

    async fn received(payload: dev::Payload) -> Result<Form, ApiError> {
        let folder = tempfile::tempdir().unwrap();
        let form = receive(&request(), payload, folder.path()).await;
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "something is left on disk");
        form
    }

    #[actix_web::test]
    async fn a_form_is_read_however_it_is_cut_and_leaves_nothing() {
        let text = part("model", "", "local")
            + &part("file", "; filename=\"a.wav\"", "the sound")
            + &part("keywords[]", "", "Ada")
            + "--x--\r\nbehind";
        for piece in [1, 7, 1_000] {
            let form = received(coming(&text, piece, Duration::ZERO, true)).await;
            let Form { mut file, fields } = form.unwrap();
            let named = |name: &str, text: &str| (name.to_owned(), text.to_owned());
            assert_eq!(fields, [named("model", "local"), named("keywords", "Ada")]);
            let mut content = String::new();
            file.rewind().unwrap();
            file.read_to_string(&mut content).unwrap();
            assert_eq!(content, "the sound");
        }
    }

    #[actix_web::test]
    async fn a_form_that_is_slow_broken_or_without_a_file_is_refused() {
        tokio::time::pause();
        let second = Duration::from_secs(1);
        let file = part("file", "; filename=\"a.wav\"", &"x".repeat(400_000));
        for (payload, problem) in [
            (coming(&file, 1_000, second, true), "slower than"),
            (coming("--x\r\n", 9, Duration::ZERO, false), "slower than"),
            (
                coming(&file, 99_999, Duration::ZERO, true),
                "cannot be read",
            ),
            (
                coming(&(part("model", "", "local") + "--x--"), 99, second, true),
                "file: is required",
            ),
            (
                coming(
                    &(part("a", "", &"x".repeat(70_000)) + "--x--"),
                    9_999,
                    Duration::ZERO,
                    true,
                ),
                "have more than",
            ),
        ] {
            let Err(error) = received(payload).await else {
                panic!("it was taken");
            };
            assert!(error.to_string().contains(problem), "{error}");
        }
    }
}
