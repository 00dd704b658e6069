//! The speech recogniser itself: Debian's `libpocketsphinx.so.3` and `libsphinxbase.so.3`, opened when they are needed
//! so that the server builds and runs where they are not installed. [`Decoder`] is the safe face of the functions that
//! we use; it runs in a worker process only, and knows nothing of the protocol, of sessions or of voice activity.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use libloading::Library;

/// What to install when the library or the model is missing.
pub const DEBIAN_PACKAGES: &str = "libpocketsphinx3 pocketsphinx-en-us";
/// The decoder's frames per second; word times are counted in them.
pub const FRAMES_PER_SECOND: f64 = 100.0;
/// Cepstral coefficients per frame, as the model was trained.
pub const CEPSTRA: usize = 13;

const RECOGNISER: &str = "libpocketsphinx.so.3";
const BASE: &str = "libsphinxbase.so.3";
/// The acoustic model, the language model and the dictionary inside a model directory.
const MODEL_FILES: [&str; 3] = ["en-us", "en-us.lm.bin", "cmudict-en-us.dict"];

/// The mean cepstrum of a speaker through a microphone. Subtracting it is how the recogniser adapts to both, so it is
/// learned from utterance to utterance.
pub type CepstralMean = [f32; CEPSTRA];

/// The mean to start from while nothing is known of a speaker: the model's own (`feat.params`), with the energy (the
/// first coefficient) at the level of close speech, where the first utterances come out better than at the model's 41.
pub const UNKNOWN_SPEAKER: CepstralMean = [
    52.0, -5.29, -0.12, 5.09, 2.48, -4.07, -1.37, -1.78, -5.08, -2.05, -6.45, -1.42, 1.17,
];

/// Why the recogniser cannot be had or did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum DecoderError {
    /// A library is missing, or is not the one that we know.
    #[error("{library} cannot be used ({source}); install the Debian packages {DEBIAN_PACKAGES}")]
    Library {
        /// The library.
        library: &'static str,
        /// What the loader said.
        source: libloading::Error,
    },
    /// A file of the model is missing.
    #[error("the model file {file} is missing; install the Debian packages {DEBIAN_PACKAGES}")]
    Model {
        /// The file.
        file: String,
    },
    /// The model is there, but the recogniser does not accept it.
    #[error("pocketsphinx cannot load its model from {model}")]
    Load {
        /// The model directory.
        model: String,
    },
    /// A call failed.
    #[error("pocketsphinx failed to {0}")]
    Call(&'static str),
}

/// A recognised word of an utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The dictionary's entry: the word, perhaps with the number of a pronunciation, or a filler such as `<sil>`.
    pub entry: String,
    /// The first frame, counted from the beginning of the utterance.
    pub first_frame: u32,
    /// One past the last frame.
    pub end_frame: u32,
    /// Posterior probability, 0–1.
    pub probability: f32,
}

/// Opaque structures of the libraries.
enum Config {}
enum Arguments {}
enum Recogniser {}
enum Segments {}
enum LogMath {}
enum Normalisation {}

/// The head of `feat_t` of sphinxbase 0.8+5prealpha (`feat.h`), up to the one field that we read.
#[repr(C)]
struct Features {
    refcount: c_int,
    name: *mut c_char,
    cepsize: i32,
    streams: i32,
    stream_len: *mut u32,
    window_size: i32,
    subvectors: i32,
    subvector_len: *mut u32,
    subvector_spec: *mut *mut i32,
    subvector_buffer: *mut f32,
    subvector_dim: i32,
    cmn: c_int,
    varnorm: i32,
    agc: c_int,
    compute: *const c_void,
    normalisation: *mut Normalisation,
}

/// Declares the functions that we use, by library, and how to look all of them up.
macro_rules! functions {
    ($($library:ident { $($name:ident: fn($($argument:ty),* $(; $variadic:tt)?) $(-> $result:ty)?;)* })*) => {
        struct Functions {
            $($($name: unsafe extern "C" fn($($argument,)* $($variadic)?) $(-> $result)?,)*)*
        }

        impl Functions {
            fn look_up($($library: &Library),*) -> Result<Self, DecoderError> {
                Ok(Self {
                    // SAFETY: the signatures below are those of the headers of these sonames
                    // (pocketsphinx and sphinxbase 0.8+5prealpha).
                    $($($name: unsafe { symbol($library, stringify!($library), stringify!($name))? },)*)*
                })
            }
        }
    };
}

functions! {
    sphinxbase {
        err_set_logfp: fn(*mut c_void);
        cmd_ln_init: fn(*mut Config, *const Arguments, i32; ...) -> *mut Config;
        cmd_ln_free_r: fn(*mut Config) -> c_int;
        logmath_exp: fn(*mut LogMath, c_int) -> c_double;
        cmn_live_get: fn(*mut Normalisation, *mut f32);
        cmn_live_set: fn(*mut Normalisation, *const f32);
    }
    pocketsphinx {
        ps_args: fn() -> *const Arguments;
        ps_init: fn(*mut Config) -> *mut Recogniser;
        ps_free: fn(*mut Recogniser) -> c_int;
        ps_get_feat: fn(*mut Recogniser) -> *mut Features;
        ps_get_logmath: fn(*mut Recogniser) -> *mut LogMath;
        ps_start_stream: fn(*mut Recogniser) -> c_int;
        ps_start_utt: fn(*mut Recogniser) -> c_int;
        ps_process_raw: fn(*mut Recogniser, *const i16, usize, c_int, c_int) -> c_int;
        ps_end_utt: fn(*mut Recogniser) -> c_int;
        ps_get_hyp: fn(*mut Recogniser, *mut i32) -> *const c_char;
        ps_seg_iter: fn(*mut Recogniser) -> *mut Segments;
        ps_seg_next: fn(*mut Segments) -> *mut Segments;
        ps_seg_word: fn(*mut Segments) -> *const c_char;
        ps_seg_frames: fn(*mut Segments, *mut c_int, *mut c_int);
        ps_seg_prob: fn(*mut Segments, *mut i32, *mut i32, *mut i32) -> i32;
    }
}

/// Looks one function up.
///
/// # Safety
/// `T` must be a function pointer with the signature of `name`, and must not be called after `library` was closed.
unsafe fn symbol<T: Copy>(
    library: &Library,
    of: &'static str,
    name: &str,
) -> Result<T, DecoderError> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<T>(name) }
        .map(|symbol| *symbol)
        .map_err(|source| DecoderError::Library {
            library: of,
            source,
        })
}

fn open(library: &'static str) -> Result<Library, DecoderError> {
    // SAFETY: opening runs the library's initialisers; those of these two and of what they need (BLAS, libgfortran)
    // are the compilers' own.
    unsafe { Library::new(library) }.map_err(|source| DecoderError::Library { library, source })
}

/// Whether the libraries and the files of the model in `model` are there. Loads no model and leaves no library open.
pub fn check(model: &Path) -> Result<(), DecoderError> {
    for name in MODEL_FILES {
        let file = model.join(name);
        if !file.exists() {
            let file = file.display().to_string();
            return Err(DecoderError::Model { file });
        }
    }
    let (base, recogniser) = (open(BASE)?, open(RECOGNISER)?);
    Functions::look_up(&base, &recogniser).map(drop)
}

/// A recogniser with its model loaded (90 MB), which hears one utterance after the other.
///
/// Invariants: `recogniser` is a live decoder that this value alone owns; `normalisation` belongs to it and has
/// [`CEPSTRA`] coefficients; the libraries stay open for as long as both (they are the last fields, so they are dropped
/// last). Raw pointers make it neither `Send` nor `Sync`, as the libraries want it.
pub struct Decoder {
    functions: Functions,
    recogniser: *mut Recogniser,
    normalisation: *mut Normalisation,
    _libraries: [Library; 2],
}

impl Decoder {
    /// Opens the libraries and loads the model. Takes about 0.4 s.
    pub fn load(model: &Path) -> Result<Self, DecoderError> {
        check(model)?;
        let (base, library) = (open(BASE)?, open(RECOGNISER)?);
        let functions = Functions::look_up(&base, &library)?;
        let refused = || DecoderError::Load {
            model: model.display().to_string(),
        };
        let recogniser = init(&functions, model).ok_or_else(refused)?;
        // From here on dropping it frees the recogniser.
        let mut decoder = Self {
            functions,
            recogniser,
            normalisation: ptr::null_mut(),
            _libraries: [base, library],
        };
        // SAFETY: the recogniser is live, and its features are an initialised `feat_t` whose head is as declared.
        decoder.normalisation = unsafe {
            let features = (decoder.functions.ps_get_feat)(recogniser).as_ref();
            features
                .filter(|features| features.cepsize == CEPSTRA as i32)
                .map_or(ptr::null_mut(), |features| features.normalisation)
        };
        if decoder.normalisation.is_null() {
            return Err(refused());
        }
        Ok(decoder)
    }

    /// Begins an utterance of a speaker with this mean; nothing else is remembered of what was heard before.
    pub fn begin(&mut self, mean: &CepstralMean) -> Result<(), DecoderError> {
        // SAFETY: recogniser and normalisation are live, and the mean has as many coefficients as are read.
        unsafe {
            (self.functions.cmn_live_set)(self.normalisation, mean.as_ptr());
            done(
                (self.functions.ps_start_stream)(self.recogniser),
                "start a stream",
            )?;
            done(
                (self.functions.ps_start_utt)(self.recogniser),
                "begin an utterance",
            )
        }
    }

    /// Hears more of the utterance: mono samples at 16 kHz.
    pub fn hear(&mut self, samples: &[i16]) -> Result<(), DecoderError> {
        // SAFETY: the pointer and the length are those of one slice, which is only read.
        let searched = unsafe {
            (self.functions.ps_process_raw)(self.recogniser, samples.as_ptr(), samples.len(), 0, 0)
        };
        done(searched, "hear audio")
    }

    /// Ends the utterance; [`Decoder::segments`] is final then.
    pub fn end(&mut self) -> Result<(), DecoderError> {
        // SAFETY: the recogniser is live.
        done(
            unsafe { (self.functions.ps_end_utt)(self.recogniser) },
            "end an utterance",
        )
    }

    /// The words as heard so far, without fillers; empty when there are none.
    pub fn hypothesis(&mut self) -> String {
        // SAFETY: the score may be null; the result is null or a C string that lives until the next call.
        unsafe {
            text((self.functions.ps_get_hyp)(
                self.recogniser,
                ptr::null_mut(),
            ))
        }
    }

    /// The best path through what was heard, fillers included.
    pub fn segments(&mut self) -> Vec<Segment> {
        let functions = &self.functions;
        let mut segments = Vec::new();
        // SAFETY: the iterator is null at the end (and freed by then); between, word and frames are those of its
        // present segment, and the scores may be null.
        unsafe {
            let log_math = (functions.ps_get_logmath)(self.recogniser);
            let mut at = (functions.ps_seg_iter)(self.recogniser);
            while !at.is_null() {
                let (mut first, mut last) = (0, 0);
                (functions.ps_seg_frames)(at, &raw mut first, &raw mut last);
                let scores = ptr::null_mut();
                let log_probability = (functions.ps_seg_prob)(at, scores, scores, scores);
                let probability = (functions.logmath_exp)(log_math, log_probability) as f32;
                segments.push(Segment {
                    entry: text((functions.ps_seg_word)(at)),
                    first_frame: u32::try_from(first).unwrap_or(0),
                    end_frame: u32::try_from(last.saturating_add(1)).unwrap_or(0),
                    probability: probability.clamp(0.0, 1.0),
                });
                at = (functions.ps_seg_next)(at);
            }
        }
        segments
    }

    /// The speaker's mean as learned up to the end of the last utterance.
    pub fn mean(&mut self) -> CepstralMean {
        let mut mean = UNKNOWN_SPEAKER;
        // SAFETY: as many coefficients are written as the array has.
        unsafe { (self.functions.cmn_live_get)(self.normalisation, mean.as_mut_ptr()) };
        mean
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: this value owns the recogniser, and nothing uses it afterwards.
        unsafe { (self.functions.ps_free)(self.recogniser) };
    }
}

/// Loads the model. The silence remover is off: the utterance is cut already, and its word times stay those of the
/// audio.
fn init(functions: &Functions, model: &Path) -> Option<*mut Recogniser> {
    let [acoustic, language, dictionary] = MODEL_FILES
        .map(|file| CString::new(model.join(file).into_os_string().as_bytes()).unwrap_or_default());
    // SAFETY: a null stream turns the library's log off. The variadic call is pairs of C strings ended by a null, all
    // of which outlive it (the library copies them). A null configuration is not passed on, and the recogniser keeps
    // its own reference to it.
    unsafe {
        (functions.err_set_logfp)(ptr::null_mut());
        let config = (functions.cmd_ln_init)(
            ptr::null_mut(),
            (functions.ps_args)(),
            1,
            c"-hmm".as_ptr(),
            acoustic.as_ptr(),
            c"-lm".as_ptr(),
            language.as_ptr(),
            c"-dict".as_ptr(),
            dictionary.as_ptr(),
            c"-remove_silence".as_ptr(),
            c"no".as_ptr(),
            c"-logfn".as_ptr(),
            c"/dev/null".as_ptr(),
            ptr::null::<c_char>(),
        );
        if config.is_null() {
            return None;
        }
        let recogniser = (functions.ps_init)(config);
        (functions.cmd_ln_free_r)(config);
        (!recogniser.is_null()).then_some(recogniser)
    }
}

fn done(status: c_int, call: &'static str) -> Result<(), DecoderError> {
    if status < 0 {
        return Err(DecoderError::Call(call));
    }
    Ok(())
}

/// A C string that may be null.
///
/// # Safety
/// `string` is null or a C string that lives for the call.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }
        .to_string_lossy()
        .into_owned()
}
