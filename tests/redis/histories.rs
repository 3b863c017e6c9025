//! Random histories from all options on both stores, which answer alike.

use crate::support::histories::fixed;
use crate::support::histories::hunt::{Both, hunt};

#[test]
fn histories_of_all_options_keep_the_contract() {
    hunt::<Both>("redis", 1_000);
}

#[test]
fn histories_that_once_failed_pass() {
    fixed::pass(&Both::default());
}
