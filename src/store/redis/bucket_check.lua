-- Token buckets, as `bucket.lua` has them; `check_head.lua` comes first and says how it is called, `pair_check.lua`
-- follows.
--
-- Numbers of a quota: fractions repaid in a us; fractions that a unit costs; burst; 0; 0.

-- What is left, and what is owed now.
local function standing(repaid, price, burst, _, _, at, debt)
  local owed = 0
  if debt > 0 then
    owed = math.max(0, debt - repaid * (now - at))
  end
  local room = burst * price - owed
  return (room - room % price) / price, now, owed
end

-- The pair after a charge, and how long it matters.
local function charge(repaid, price, _, _, _, at, owed, cost)
  local debt = owed + cost * price
  return at, debt, math.ceil(debt / repaid)
end

-- A full bucket owes nothing of any charge. (One of this very instant may have been taken back just now.)
local function goes_on(owed, tail)
  local _, _, last = read_at('>I8I8I8', tail)
  return owed > 0 or last >= now
end

local function is_spoilt(state)
  return #state ~= 16 and (#state < 72 or (#state - 72) % 16 ~= 0)
end

