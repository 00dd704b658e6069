//! Links libsonic, Debian's package of it.

fn main() {
    println!("cargo::rustc-link-lib=sonic");
}
