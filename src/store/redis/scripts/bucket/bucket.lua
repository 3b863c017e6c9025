-- Token buckets (generic cell rate algorithm) in the format of `pair_state.lua`.
--
-- The pair is an instant and the debt at that instant. The unit of debt is a fraction of the time
-- in which one unit refills. The core's `bucket.rs` explains it.
--
-- Numbers of a quota: fractions repaid in a us; fractions that a unit costs; burst; 0; 0; 0.
--
-- The tail begins with the instant until which reservations may be undone, us. The ledger's other
-- numbers follow, then its holes. Each hole has the debt before it and its length. The core's
-- `ledger.rs` explains them.

-- The numbers at the start of a tail.
local NUMBERS = '>I8I8I8I8I8I8I8'

local function ends_at(repaid, _, _, _, _, at, debt)
  return at + math.ceil(debt / repaid)
end

-- The debt at an instant.
local function owed_at(instant, repaid, at, debt)
  return debt > 0 and math.max(0, debt - repaid * (instant - at)) or 0
end

local function standing(repaid, price, burst, _, _, _, at, debt)
  local owed = owed_at(now, repaid, at, debt)
  local room = burst * price - owed
  return (room - room % price) / price, now, owed
end

local function charge(_, price, at, owed, cost)
  return at, owed + cost * price
end

-- A full bucket has no debt of any charge. A charge of this very instant may have been refunded.
local function goes_on(owed, tail)
  local _, _, last = struct.unpack('>I8I8I8', tail)
  return owed > 0 or last >= now
end

local function is_tail(length)
  return length >= 56 and (length - 56) % 16 == 0
end

-- Each charge delays the instant at which the bucket is full.
local function spare(instant)
  return math.max(1000000, math.ceil((instant - now) / 8))
end

