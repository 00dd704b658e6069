//! The Kaiser window, for filters that are computed here.

/// The Kaiser window of shape `beta` at `x` of −1 to 1.
pub fn kaiser(x: f64, beta: f64) -> f64 {
    let root = (1.0 - x * x).max(0.0).sqrt();
    bessel_i0(beta * root) / bessel_i0(beta)
}

/// The modified Bessel function of the first kind and order zero, by its power series.
pub fn bessel_i0(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut sum, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-12 {
        term *= quarter / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bessel_function_has_the_values_of_the_tables() {
        // Abramowitz and Stegun, table 9.8 (there as e^-x I0(x)).
        for (x, scaled) in [
            (0.0, 1.0),
            (1.0, 0.465_759_607_7),
            (5.0, 0.183_540_812_6),
            (10.0, 0.127_833_337_2),
        ] {
            let found = bessel_i0(x) * f64::exp(-x);
            assert!((found - scaled).abs() < 1e-9, "{found} at {x}");
        }
    }

    #[test]
    fn the_kaiser_window_is_one_in_the_middle_and_falls_to_both_sides() {
        assert!((kaiser(0.0, 9.1) - 1.0).abs() < 1e-12);
        assert!((kaiser(-0.5, 9.1) - kaiser(0.5, 9.1)).abs() < 1e-12);
        assert!(kaiser(1.0, 9.1) < 1e-3);
        assert!(
            kaiser(1.1, 9.1) > 0.0,
            "beyond the end it stays what it was"
        );
    }
}
