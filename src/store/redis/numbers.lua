-- Every number stays below 2^53 (TIME is 1.8e15, limits and costs at most 1e15), where doubles are exact; so are a % b
-- and (a - a % b) / b, which is the quotient rounded down, for such a and b.

local EXACT = 9007199254740992

-- How long a key lives that matters until then, ms; one second more spares the edge.
local function life_until(instant, now)
  return string.format('%.0f', math.ceil((instant - now) / 1000) + 1000)
end

