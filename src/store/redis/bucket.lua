-- Token bucket (generic cell rate algorithm); for `hold.lua`, `once.lua` and what takes back; `pair_head.lua` says
-- how it is called, `bucket_check.lua` is the same for checks. The pair: an instant, and what
-- was owed then, in fractions of the time in which one unit refills; see the core's `bucket.rs`.
-- Parameters of a quota: fractions repaid in a us; fractions that a unit costs; burst.

-- The numbers at the start of a tail.
local NUMBERS = '>I8I8I8I8I8I8I8'

local function owed(q, at, debt, instant)
  return debt > 0 and math.max(0, debt - parameter(q, 1) * ((instant or now) - at)) or 0
end

local function left(q, at, debt)
  return math.floor((parameter(q, 3) * parameter(q, 2) - owed(q, at, debt)) / parameter(q, 2))
end

local function charge(q, at, debt, cost)
  local debts = owed(q, at, debt) + cost * parameter(q, 2)
  return now, debts, math.ceil(debts / parameter(q, 1))
end

-- A full bucket owes nothing of any charge. (One of this very instant may have been taken back just now.)
local function goes_on(q, at, debt, tail)
  local _, _, last = struct.unpack('>I8I8I8', tail)
  return owed(q, at, debt) > 0 or last >= now
end

