-- Token buckets (generic cell rate algorithm), as `pair_state.lua` has them. The pair: an instant, and what was owed
-- then, in fractions of the time in which one unit refills; see the core's `bucket.rs`.
--
-- Numbers of a quota: fractions repaid in a us; fractions that a unit costs; burst; 0; 0; 0.
-- The tail: until when reservations may be taken back, us; the ledger's other numbers; and its holes, each what is owed
-- before it and how much it is; see the core's `ledger.rs`.

-- The numbers at the start of a tail.
local NUMBERS = '>I8I8I8I8I8I8I8'

local function ends_at(repaid, _, _, _, _, at, debt)
  return at + math.ceil(debt / repaid)
end

-- What is owed at an instant.
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

-- A full bucket owes nothing of any charge. (One of this very instant may have been taken back just now.)
local function goes_on(owed, tail)
  local _, _, last = struct.unpack('>I8I8I8', tail)
  return owed > 0 or last >= now
end

local function is_tail(length)
  return length >= 56 and (length - 56) % 16 == 0
end

-- With each charge a bucket is full again a little later.
local function spare(instant)
  return math.max(1000000, math.ceil((instant - now) / 8))
end

