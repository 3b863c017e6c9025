//! The network between a node and its Redis: cut, slow, or dropping bytes.

use std::thread::sleep;
use std::time::Duration;

use super::{TIMEOUT, during, lasts};
use crate::support::chaos::{Row, Service, now_ms};
use crate::support::proxy::Proxy;
use crate::support::redis::Server;

#[test]
fn cut_connections_recover() {
    let rows = through_a_proxy("TCP connections cut, 20 times", |proxy| {
        for _ in 0..20 {
            proxy.cut();
            sleep(Duration::from_millis(100));
        }
    });
    rows.iter().for_each(|row| {
        row.holds().forgets_nothing().is_back_within(1000);
    });
}

#[test]
fn slow_network_keeps_deciding() {
    let rows = through_a_proxy("TCP delayed by 300 ms for 3 s", |proxy| {
        proxy.delay(150);
        sleep(lasts(3000));
        proxy.delay(0);
    });
    rows.iter().for_each(|row| {
        row.holds().forgets_nothing().is_back_within(1000);
    });
}

/// The firewall resets the connections when it recovers.
#[test]
fn half_open_connections_recover() {
    let rows = through_a_proxy("TCP half-open for 3 s", |proxy| {
        proxy.fall_silent();
        sleep(lasts(3000));
        proxy.delay(0);
        proxy.cut();
    });
    rows.iter().for_each(|row| {
        row.holds().forgets_nothing().is_back_within(1000);
    });
}

fn through_a_proxy(what: &str, fault: impl FnOnce(&Proxy)) -> [Row; 2] {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let mut service = Service::start(&[proxy.url()], TIMEOUT);
    service.under(what, None, || {
        let mut back = 0;
        during(|| {
            fault(&proxy);
            back = now_ms();
        });
        Some(back)
    })
}
