-- Fixed windows, as `fixed.lua` has them; `check_head.lua` comes first and says how it is called, `pair_check.lua`
-- follows.
--
-- Numbers of a quota: length of a window, us; limit; 0 where a window begins with its first charge, 1 where it begins
-- at a multiple of its length since the epoch; 0; 0. By the calendar: the first instant of the window in which the
-- caller believes TIME to be; limit; 2; the ends of that window and of the next one, between which from and to lie.

-- The end of the window that began at `start`. Of one beyond those that are known, which a clock that stepped back
-- finds, it is not too early.
local function ending(length, kind, edge, last, start)
  if kind < 2 then
    return start + length
  end
  return start < length and length or start < edge and edge or start < last and last or start + last - length
end

-- What is left, and the window that counts now.
local function standing(length, limit, kind, edge, last, start, count)
  if count > 0 and now < ending(length, kind, edge, last, start) then
    return limit - count, start, count
  end
  local begun = now
  if kind == 1 then
    begun = now - now % length
  elseif kind == 2 then
    begun = now < edge and length or edge
  end
  return limit, begun, 0
end

-- The pair after a charge, and how long it matters.
local function charge(length, _, kind, edge, last, start, count, cost)
  return start, count + cost, ending(length, kind, edge, last, start) - now
end

local function goes_on(count)
  return count > 0
end

local function is_spoilt(state)
  return #state ~= 16 and #state ~= 24
end

