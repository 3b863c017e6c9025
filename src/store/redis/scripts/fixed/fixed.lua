-- Fixed windows, as `pair_state.lua` has them. The pair: the window's first instant, its count.
--
-- Numbers of a quota: length of a window, us; 0 where a window begins with its first charge, 1 where it begins at a
-- multiple of its length since the epoch; limit; 0; 0; 0. By the calendar: its usual length; a number of its own for
-- each unit and time zone, from 2 on; limit; the first instant of the window in which the caller believes TIME to be;
-- the ends of that window and of the next one, within which TIME is.
-- The tail: until when reservations may be taken back, us.

-- Of a window beyond those that are known, which a clock that stepped back finds, the end is not too early. By the
-- calendar a day may have some hours more than others, a month a day.
local function ends_at(length, anchor, began, edge, last, start, count)
  if count == 0 then
    return 0
  end
  if anchor < 2 then
    return start + length
  end
  if not began then
    return start + length + length / 8
  end
  return start < began and began or start < edge and edge or start < last and last or start + last - began
end

local function standing(length, anchor, limit, began, edge, last, start, count)
  if now < ends_at(length, anchor, began, edge, last, start, count) then
    return limit - count, start, count
  end
  local begun = now
  if anchor == 1 then
    begun = now - now % length
  elseif anchor > 1 then
    begun = now < edge and began or edge
  end
  return limit, begun, 0
end

local function charge(_, _, start, count, cost)
  return start, count + cost
end

local function goes_on(count)
  return count > 0
end

local function is_tail(length)
  return length == 8
end

-- The end of a window never moves.
local function spare()
  return 0
end

