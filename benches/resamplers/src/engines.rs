//! The resamplers behind one trait, mono. The two C libraries are reached by the few functions that this needs,
//! declared by hand; `unsafe` is confined to this file.

use std::ffi::{c_char, c_double, c_int, c_uint, c_ulong, c_void};
use std::ptr;

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{
    Async, FixedAsync, Indexing, Resampler as _, Resizable as _, SincInterpolationParameters,
    SincInterpolationType, WindowFunction,
};
use vivavoce::audio::{Layout, Resampler, SampleRate};

/// Something that changes a rate while the sound arrives. What it delivers is aligned in time with its input.
pub trait Resample {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>);
}

pub struct Engine {
    pub name: &'static str,
    pub open: fn(u32, u32) -> Box<dyn Resample>,
}

/// speexdsp's quality 3 comes closest to what we ask for, 5 is what telephone systems commonly use.
pub const ENGINES: [Engine; 5] = [
    Engine {
        name: "vivavoce",
        open: open_ours,
    },
    Engine {
        name: "speexdsp 3",
        open: |from, to| Box::new(Speex::open(from, to, 3)),
    },
    Engine {
        name: "speexdsp 5",
        open: |from, to| Box::new(Speex::open(from, to, 5)),
    },
    Engine {
        name: "soxr HQ",
        open: |from, to| Box::new(Soxr::open(from, to)),
    },
    Engine {
        name: "rubato",
        open: |from, to| Box::new(Rubato::open(from, to)),
    },
];

impl Resample for Resampler {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        Resampler::push(self, input, output);
    }
}

fn open_ours(from: u32, to: u32) -> Box<dyn Resample> {
    let rate = |hz: u32| SampleRate::new(hz).expect("a rate of the table");
    Box::new(Resampler::new(Layout::mono(rate(from)), rate(to)))
}

/// Room for what a chunk can give, whatever was held before.
fn room(input: usize, from: u32, to: u32) -> usize {
    input * to as usize / from as usize + to as usize
}

#[link(name = "speexdsp")]
unsafe extern "C" {
    fn speex_resampler_init(
        channels: u32,
        from: u32,
        to: u32,
        quality: c_int,
        error: *mut c_int,
    ) -> *mut c_void;
    fn speex_resampler_skip_zeros(state: *mut c_void) -> c_int;
    fn speex_resampler_process_int(
        state: *mut c_void,
        channel: u32,
        input: *const i16,
        input_frames: *mut u32,
        output: *mut i16,
        output_frames: *mut u32,
    ) -> c_int;
    fn speex_resampler_destroy(state: *mut c_void);
}

struct Speex {
    state: *mut c_void,
    from: u32,
    to: u32,
}

impl Speex {
    fn open(from: u32, to: u32, quality: c_int) -> Self {
        let mut error = 0;
        // SAFETY: plain numbers in, and `error` outlives the call.
        let state = unsafe { speex_resampler_init(1, from, to, quality, &raw mut error) };
        assert!(!state.is_null() && error == 0, "speexdsp error {error}");
        // SAFETY: the state is live.
        unsafe { speex_resampler_skip_zeros(state) };
        Self { state, from, to }
    }
}

impl Resample for Speex {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        let start = output.len();
        output.resize(start + room(input.len(), self.from, self.to), 0);
        let mut taken = input.len() as u32;
        let mut given = (output.len() - start) as u32;
        // SAFETY: the state is live and both lengths are those of the slices.
        let error = unsafe {
            speex_resampler_process_int(
                self.state,
                0,
                input.as_ptr(),
                &raw mut taken,
                output[start..].as_mut_ptr(),
                &raw mut given,
            )
        };
        assert!(error == 0 && taken as usize == input.len());
        output.truncate(start + given as usize);
    }
}

impl Drop for Speex {
    fn drop(&mut self) {
        // SAFETY: the state is live and nobody uses it afterwards.
        unsafe { speex_resampler_destroy(self.state) };
    }
}

/// `soxr_io_spec_t` of soxr.h.
#[repr(C)]
struct IoSpec {
    input: c_int,
    output: c_int,
    scale: c_double,
    extension: *mut c_void,
    flags: c_ulong,
}

/// `soxr_quality_spec_t` of soxr.h.
#[repr(C)]
struct QualitySpec {
    precision: c_double,
    phase_response: c_double,
    passband_end: c_double,
    stopband_begin: c_double,
    extension: *mut c_void,
    flags: c_ulong,
}

/// `SOXR_INT16_I`.
const INT16_INTERLEAVED: c_int = 3;
/// `SOXR_NO_DITHER`: nobody else dithers.
const NO_DITHER: c_ulong = 8;
/// `SOXR_HQ`.
const HIGH_QUALITY: c_ulong = 4;

#[link(name = "soxr")]
unsafe extern "C" {
    fn soxr_quality_spec(recipe: c_ulong, flags: c_ulong) -> QualitySpec;
    fn soxr_create(
        from: c_double,
        to: c_double,
        channels: c_uint,
        error: *mut *const c_char,
        io: *const IoSpec,
        quality: *const QualitySpec,
        runtime: *const c_void,
    ) -> *mut c_void;
    fn soxr_process(
        state: *mut c_void,
        input: *const i16,
        input_frames: usize,
        taken: *mut usize,
        output: *mut i16,
        output_frames: usize,
        given: *mut usize,
    ) -> *const c_char;
    fn soxr_delete(state: *mut c_void);
}

struct Soxr {
    state: *mut c_void,
    from: u32,
    to: u32,
}

impl Soxr {
    fn open(from: u32, to: u32) -> Self {
        let io = IoSpec {
            input: INT16_INTERLEAVED,
            output: INT16_INTERLEAVED,
            scale: 1.0,
            extension: ptr::null_mut(),
            flags: NO_DITHER,
        };
        let mut error = ptr::null();
        // SAFETY: the structures are those of soxr.h and outlive the calls; a null runtime means the default.
        let state = unsafe {
            let quality = soxr_quality_spec(HIGH_QUALITY, 0);
            soxr_create(
                f64::from(from),
                f64::from(to),
                1,
                &raw mut error,
                &raw const io,
                &raw const quality,
                ptr::null(),
            )
        };
        assert!(!state.is_null() && error.is_null(), "soxr_create failed");
        Self { state, from, to }
    }
}

impl Resample for Soxr {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        let start = output.len();
        output.resize(start + room(input.len(), self.from, self.to), 0);
        let (mut taken, mut given) = (0, 0);
        // SAFETY: the state is live and both lengths are those of the slices.
        let error = unsafe {
            soxr_process(
                self.state,
                input.as_ptr(),
                input.len(),
                &raw mut taken,
                output[start..].as_mut_ptr(),
                output.len() - start,
                &raw mut given,
            )
        };
        assert!(error.is_null() && taken == input.len());
        output.truncate(start + given);
    }
}

impl Drop for Soxr {
    fn drop(&mut self) {
        // SAFETY: the state is live and nobody uses it afterwards.
        unsafe { soxr_delete(self.state) };
    }
}

/// rubato with the settings that come closest to our demands: see [`Rubato::open`].
struct Rubato {
    inner: Async<f32>,
    /// Output frames to be dropped: rubato leaves its delay at the start for the caller to trim.
    delay: usize,
    input: Vec<f32>,
    output: Vec<f32>,
}

impl Rubato {
    /// The shortest filter that meets our demands with one of its windows, and a row of its own for every position
    /// between two input frames, which makes interpolation unnecessary.
    fn open(from: u32, to: u32) -> Self {
        const SPAN: f64 = 32.0;
        let lower = f64::from(from.min(to)) / f64::from(from);
        let parameters = SincInterpolationParameters {
            sinc_len: (SPAN / lower).ceil() as usize,
            f_cutoff: Some(0.95),
            oversampling_factor: (to / gcd(from, to)) as usize,
            interpolation: SincInterpolationType::Nearest,
            window: WindowFunction::BlackmanHarris,
        };
        let ratio = f64::from(to) / f64::from(from);
        let inner = Async::new_sinc(ratio, 1.0, &parameters, 1024, 1, FixedAsync::Input)
            .expect("valid parameters");
        Self {
            delay: inner.output_delay(),
            inner,
            input: Vec::new(),
            output: Vec::new(),
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Resample for Rubato {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        for block in input.chunks(1024) {
            self.inner
                .set_chunk_size(block.len())
                .expect("at most 1024");
            self.input.clear();
            self.input
                .extend(block.iter().map(|&sample| f32::from(sample) / 32_768.0));
            self.output.resize(self.inner.output_frames_max(), 0.0);
            let frames = self.output.len();
            let source = InterleavedSlice::new(&self.input, 1, block.len()).expect("mono");
            let mut target = InterleavedSlice::new_mut(&mut self.output, 1, frames).expect("mono");
            let (_, given) = self
                .inner
                .process_into_buffer(&source, &mut target, Some(&Indexing::new()))
                .expect("buffers as long as asked for");
            let dropped = given.min(self.delay);
            self.delay -= dropped;
            let samples = &self.output[dropped..given];
            output.extend(samples.iter().map(|&s| (s * 32_768.0).round() as i16));
        }
    }
}
