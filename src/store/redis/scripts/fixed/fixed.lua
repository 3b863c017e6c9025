-- Fixed windows in the format of `pair_state.lua`. The pair is the window's first instant and its
-- count.
--
-- Numbers of a quota: length of a window, us; anchor; limit; 0; 0; 0. The anchor is 0 where a
-- window begins with its first charge. It is 1 where windows begin at multiples of their length
-- since 1970.
--
-- Numbers of a calendar quota: usual length; anchor; limit; began; edge; last. The anchor from 2 on
-- identifies the unit and the time zone. The caller expects TIME in the window that begins at
-- `began` and ends at `edge`, or in the next one, which ends at `last`.
--
-- The tail: until when reservations may be undone, us.

-- After a clock stepped back, the window may lie beyond the known ones. Its end is then not too
-- early. A calendar day may be some hours longer than others, a month a day.
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
  if not began then
    return limit, begun, 0
  end
  if anchor == 1 then
    begun = now - now % length
  elseif anchor > 1 then
    begun = now < edge and began or edge
  end
  return limit, begun, 0
end

local function added(_, _, start, count, cost)
  return start, count + cost
end

local function goes_on(count)
  return count > 0
end

-- Nobody waits in line for a window.
local function is_held()
  return false
end

local function is_tail(length)
  return length == 8
end

-- The end of a window never moves.
local function spare()
  return 0
end

-- A window of another length or anchor begins anew.
local CARRIES, carry = false, nil

-- Nobody waits in line for a window.
local free_line

-- The numbers of a quota in a record. The window of a calendar ends at `ends_at`, not too early.
local function numbers_of(name, window)
  local calendar = string.match(name, '^f8%-.*#(%d+)$')
  if calendar or string.sub(name, 1, 3) == 'f8-' then
    return {window, tonumber(calendar) or string.sub(name, -6) == ':first' and 0 or 1, 0}
  end
end

