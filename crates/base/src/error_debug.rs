//! `Debug` of errors.

/// Implements `Debug` of error types by their `Display`, since an error that leaves `main` is printed by `Debug`, also
/// in a box.
///
/// ```
/// #[derive(thiserror::Error)]
/// #[error("the disk is full")]
/// struct DiskFull;
///
/// millstream_base::debug_as_display!(DiskFull);
///
/// let error: Box<dyn std::error::Error> = DiskFull.into();
/// assert_eq!(format!("{error:?}"), "the disk is full");
/// ```
#[macro_export]
macro_rules! debug_as_display {
    ($error:ident $(<$parameter:ident>)?) => {
        impl $(<$parameter: ::std::fmt::Display>)? ::std::fmt::Debug for $error $(<$parameter>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    };
}
