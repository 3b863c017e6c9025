//! Random histories from all options on the embedded store.

use crate::support::histories::fixed;
use crate::support::histories::hunt::{Embedded, hunt};

#[test]
fn histories_of_all_options_keep_the_contract() {
    hunt::<Embedded>("embedded", 6_000);
}

#[test]
fn histories_that_once_failed_pass() {
    fixed::pass(&Embedded);
}
