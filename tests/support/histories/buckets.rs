//! Token buckets in the exact log: burst + rate x t of the largest burst and rate in force.
//!
//! A debt belongs to the quota of its rate. Quotas that owe nothing take over the other debts, in the
//! order of the rates, the fastest first, and repaid ones last (docs/guarantees.md, Changed rates;
//! ADR 40). So each debt has a log of its own, and the bursts and rates of the quotas that had it.

use std::cmp::Ordering;

use tollgate::limit::quota::{Quota, Rate, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::Work;

use super::book::{Book, Charge};
use super::engine::Call;
use super::line;

/// A debt below this many units may be a rounding of the store, which takes over a 64th of a unit.
const ROUNDING: f64 = 1.0 / 16.0;

/// The debt of one quota, whatever rate it has now.
#[derive(Debug, Clone)]
struct Column {
    rate: Rate,
    /// Places of the charges in the book, each with the place of its quota.
    charges: Vec<(usize, usize)>,
    /// Places of the refunds by cost.
    refunds: Vec<usize>,
    /// The bursts and rates in force.
    bursts: u64,
    rates: Vec<Rate>,
    /// Whether its quota was repaid, and has taken over the debt of another rate.
    is_gone: bool,
}

#[derive(Debug, Default)]
pub struct Columns {
    columns: Vec<Column>,
    refunds: usize,
    /// Whether the store may see a debt where the log has none, or none where it has one.
    is_uncertain: bool,
}

impl Columns {
    pub fn note(&mut self, book: &Book, call: &Call, made: std::ops::Range<usize>) -> Result<(), String> {
        if matches!(call.work, Work::Reset(_)) {
            *self = Self::default();
            return Ok(());
        }
        let refunds = std::mem::replace(&mut self.refunds, book.refunds.len());
        if self.is_uncertain || book.stepped_back {
            // A clock that steps back while a bucket has two rates may admit a burst once more
            // (docs/guarantees.md, Clocks).
            let has_others = self.columns.len() > call.policy.quotas.len();
            let has_two_rates = has_others || self.columns.iter().any(|column| column.rates.len() > 1);
            // A give-back came later than the charges behind the step.
            self.is_uncertain |= has_two_rates || book.has_given_back || !book.refunds.is_empty();
        }
        for refund in refunds..book.refunds.len() {
            let places = self.matched(book, &book.refunds[refund].quotas, call.now);
            places.into_iter().for_each(|column| self.columns[column].refunds.push(refund));
        }
        for place in made {
            let charge = &book.charges[place];
            let columns = self.matched(book, &charge.quotas, call.now);
            for (quota, column) in columns.into_iter().enumerate() {
                if !self.is_uncertain && line::started(call).is_some() {
                    self.columns[column].in_order(book, charge)?;
                }
                self.columns[column].charges.push((place, quota));
                let is_back = book.stepped_back && self.columns[column].rates.len() > 1;
                if !charge.is_drained && charge.parts[quota] > 0 && !self.is_uncertain && !is_back {
                    self.columns[column].judge(book)?;
                }
            }
        }
        Ok(())
    }

    /// The columns of these quotas, which take over debts of other rates for good.
    fn matched(&mut self, book: &Book, quotas: &[Quota], now: Micros) -> Vec<usize> {
        let rates: Vec<Rate> = quotas.iter().filter_map(rate).collect();
        if rates.len() < quotas.len() {
            return Vec::new();
        }
        let debts: Vec<f64> = self.columns.iter().map(|column| column.debt(book, now, column.rate)).collect();
        let rounded = |debt: &f64| *debt > 0.0 && *debt < ROUNDING;
        // A former rate may have repaid the debt that another one took over, or not yet.
        let differs = |(column, debt): (&Column, &f64)| {
            column.rates.iter().any(|rate| (column.debt(book, now, *rate) > 0.0) != (*debt > 0.0))
        };
        self.is_uncertain |=
            self.columns.len() > 1 && (debts.iter().any(rounded) || self.columns.iter().zip(&debts).any(differs));
        if debts.iter().all(|debt| *debt <= 0.0) {
            // Nothing is left of a key whose buckets are all full.
            self.columns.clear();
        }
        let of_rate = |rate: &Rate| {
            (0..self.columns.len()).find(|column| {
                !self.columns[*column].is_gone && faster(self.columns[*column].rate, *rate) == Ordering::Equal
            })
        };
        let own: Vec<Option<usize>> = rates.iter().map(of_rate).collect();
        let owes = |column: &usize| debts[*column] > 0.0;
        let mut found: Vec<Option<usize>> = own.iter().map(|column| column.filter(owes)).collect();
        let is_free = |column: &usize| !self.columns[*column].is_gone && !own.contains(&Some(*column));
        let mut free: Vec<usize> = (0..self.columns.len()).filter(is_free).collect();
        free.sort_by(|a, b| faster(self.columns[*a].rate, self.columns[*b].rate));
        let (owing, repaid): (Vec<usize>, Vec<usize>) = free.into_iter().partition(owes);
        let mut without: Vec<usize> = (0..rates.len()).filter(|quota| found[*quota].is_none()).collect();
        without.sort_by(|a, b| faster(rates[*a], rates[*b]));
        for (quota, column) in without.iter().zip(owing) {
            found[*quota] = Some(column);
        }
        let left = without.into_iter().filter(|quota| found[*quota].is_none() && own[*quota].is_none());
        let left: Vec<usize> = left.collect();
        for (quota, column) in left.into_iter().zip(repaid) {
            found[quota] = Some(column);
        }
        for quota in 0..found.len() {
            found[quota] = found[quota].or(own[quota]);
            if let Some(own) = own[quota].filter(|own| found[quota] != Some(*own)) {
                self.columns[own].is_gone = true;
            }
        }
        found
            .into_iter()
            .enumerate()
            .map(|(quota, column)| {
                let (rate, burst) = (rates[quota], quotas[quota].limit.get());
                let place = column.unwrap_or_else(|| {
                    let (charges, refunds, rates) = Default::default();
                    self.columns.push(Column { rate, charges, refunds, bursts: 0, rates, is_gone: false });
                    self.columns.len() - 1
                });
                let column = &mut self.columns[place];
                (column.rate, column.bursts) = (rate, column.bursts.max(burst));
                if !column.rates.contains(&rate) {
                    column.rates.push(rate);
                }
                place
            })
            .collect()
    }
}

fn rate(quota: &Quota) -> Option<Rate> {
    match quota.rule {
        Rule::TokenBucket(rate) => Some(rate),
        _ => None,
    }
}

/// The faster rate first.
fn faster(one: Rate, other: Rate) -> Ordering {
    let product = |a: Rate, b: Rate| u128::from(a.units.get()) * u128::from(b.per);
    product(other, one).cmp(&product(one, other))
}

impl Column {
    /// The charges and the refunds by cost, in the order of the store.
    fn log(&self, book: &Book) -> Vec<(Micros, i128, bool)> {
        let mut log: Vec<(usize, Micros, i128, bool)> = self
            .charges
            .iter()
            .map(|(place, quota)| {
                let Charge { at, parts, is_drained, .. } = &book.charges[*place];
                let units = if book.charges[*place].is_due() { 0 } else { parts[*quota] };
                (2 * place + 1, *at, i128::from(units), *is_drained)
            })
            .collect();
        log.extend(self.refunds.iter().map(|refund| {
            let refund = &book.refunds[*refund];
            (2 * refund.after, refund.at, -i128::from(refund.units), true)
        }));
        log.sort_by_key(|(order, ..)| *order);
        log.into_iter().map(|(_, at, units, is_drained)| (at, units, is_drained)).collect()
    }

    /// Nothing starts before a place that is held. Plans whose buckets all owe have lines of their own
    /// (docs/guarantees.md, Starts in line).
    fn in_order(&self, book: &Book, charge: &Charge) -> Result<(), String> {
        let held = self
            .charges
            .iter()
            .map(|(place, _)| &book.charges[*place])
            .filter(|before| before.is_held(book.latest));
        match held.map(|before| before.at).max().filter(|held| *held > charge.at) {
            Some(held) => Err(format!("starts {} us before a place that is held", held - charge.at)),
            None => Ok(()),
        }
    }

    /// Units that the bucket owes by a rate.
    fn debt(&self, book: &Book, now: Micros, rate: Rate) -> f64 {
        let per_us = rate.units.get() as f64 / rate.per as f64;
        let (mut debt, mut since) = (0.0_f64, 0);
        for (at, units, _) in self.log(book).into_iter().filter(|(_, units, _)| *units != 0) {
            debt = (debt - per_us * at.saturating_sub(since) as f64).max(0.0) + units as f64;
            (debt, since) = (debt.max(0.0), since.max(at));
        }
        debt - per_us * now.saturating_sub(since) as f64
    }

    /// The last admission ends no interval with too much. A drain may reach one burst below empty
    /// (docs/http-api.md, Usage that is known afterwards), so it ends none.
    fn judge(&self, book: &Book) -> Result<(), String> {
        let log = self.log(book);
        let (mut sum, mut earliest, mut latest) = (0, Micros::MAX, 0);
        for (at, units, _) in log.iter().rev().filter(|(_, units, _)| *units != 0) {
            // Behind a step back lie earlier instants of the interval.
            earliest = if book.stepped_back { earliest.min(*at) } else { *at };
            (sum, latest) = (sum + units, latest.max(*at));
            let span = u128::from(latest - earliest);
            let refilled =
                self.rates.iter().map(|rate| span * u128::from(rate.units.get()) / u128::from(rate.per)).max();
            let bound = u128::from(self.bursts) + refilled.unwrap_or(0);
            if *units > 0 && sum > bound.cast_signed() {
                let told: Vec<_> = log.iter().map(|(at, units, _)| (at - log[0].0.min(*at), units)).collect();
                return Err(format!(
                    "{sum} in {span} us, at most {bound} of burst {} and {:?}: {told:?}",
                    self.bursts, self.rates
                ));
            }
        }
        Ok(())
    }
}
