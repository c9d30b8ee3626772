//! State elements: the results of a flow, readable by key while it runs, and saved in its checkpoints.
//!
//! Workers change a state element under a short lock, one slice at a time, so that readers see whole slices. This folder
//! does not know stages, rings or event time.

pub mod change;
pub mod changelog_reader;
pub mod collected;
pub mod counters;
pub mod element;
pub mod element_tuples;
pub mod greatest;
pub mod json_text;
pub mod key_ref;
pub mod late;
pub mod lazy_values;
pub mod lifetimes;
pub mod lists;
pub mod loading;
pub mod lockable;
pub mod logged;
pub mod logged_windows;
pub mod lookups;
pub mod maps;
pub mod matrices;
pub mod memory;
pub mod ordered;
pub mod ordered_maps;
pub mod ordered_values;
pub mod partial;
pub mod partial_map;
pub mod partial_matrix;
pub mod read_only;
pub mod row_places;
pub mod sets;
pub mod size;
pub mod table;
pub mod timers;
pub mod tops;
pub mod value_encoding;
pub mod value_history;
pub mod value_table;
pub mod values;
pub mod vectors;
pub mod watched;
pub mod watchers;
pub mod windowed;
