-- Token buckets (generic cell rate algorithm) in the format of `pair_state.lua`.
--
-- The pair is an instant and the debt at that instant. The unit of debt is a fraction of the time
-- in which one unit refills. The core's `bucket.rs` explains it.
--
-- Numbers of a quota: fractions repaid in a us; fractions that a unit costs; burst; 0; 0; 0.
--
-- The tail is the ledger, which the core's `ledger.rs` explains: until when reservations may be
-- undone, us; the first and the last number; the last place in line, us; all refunded debt; the
-- first number since a refund by cost; 0. Former versions wrote a number for the zero, more of
-- them, and a past instant for the place.

-- Debts under other rates count for a quota that owes nothing by itself (`bucket_carry.lua`).
local CARRIES = true

local function ends_at(repaid, _, _, _, _, at, debt)
  return at + math.ceil(debt / repaid)
end

-- The debt at an instant.
local function owed_at(instant, repaid, at, debt)
  return math.max(0, debt - repaid * (instant - at))
end

local function standing(repaid, price, burst, _, _, _, at, debt)
  local owed = owed_at(now, repaid, at, debt)
  local room = burst * price - owed
  return (room - room % price) / price, now, owed
end

local function added(_, price, at, owed, cost)
  return at, owed + cost * price
end

-- The last place in line, us.
local function line_of(tail)
  return (struct.unpack('>I8', tail, 25))
end

-- Whether nothing may start now, since others wait in line.
local function is_held(tail)
  return line_of(tail) > now
end

-- A full bucket has no debt of any charge. A charge of this very instant may have been refunded,
-- and a line goes on.
local function goes_on(owed, tail)
  local _, _, last, line = struct.unpack('>I8I8I8I8', tail)
  return owed > 0 or last >= now or line >= now
end

local function is_tail(length)
  return length >= 56 and (length - 56) % 16 == 0
end

-- Each charge delays the instant at which the bucket is full.
local function spare(instant)
  return math.max(1000000, math.ceil((instant - now) / 8))
end

