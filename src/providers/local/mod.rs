//! The engines that need no key.
