-- Sliding windows of one key: the counts of all quotas of its policy, in one String.
--
-- A command costs more than the data that it reads. With a key for each quota, a check of three
-- quotas reads six keys and writes three. A call of one key also works while its slot moves.
--
-- The parts of the String, all numbers big-endian:
--   mark    8 bytes: until when reservations may be undone, us
--   count   1 byte: number of columns
--   the columns, then their sums
--
-- A column, 34 bytes, is the count of one quota:
--   kind    8 bytes: twice its window, us; plus 1 where its limit is 2^32 or more. A limit that
--           crosses that line has another column, which takes the counts over.
--   first   8 bytes: the step of its first charge, numbered from 1970
--   last    8 bytes: the last step with a count
--   total   8 bytes: all charges from the first on, modulo 2^32, or modulo 2^52 for such limits
--   places  2 bytes: number of places for sums, at most 129
--
-- A sum, 4 or 8 bytes as its limit needs, is the total at the end of a step. The sum of step b
-- is at place (b - first) % 129. It is kept while b is one of the 129 steps before the last. So
-- one subtraction yields the count of adjacent steps. A clock may step back by a window.
--
-- Columns of other quotas follow those of the policy while they count. The policy had these quotas
-- before, or has them on another node.

local HEADER, COLUMN = 9, 34

-- The number of steps before the last one whose sums are kept.
local KEPT = 129

-- Other functions on columns. Most checks need none, and creating them takes longer than those
-- checks.
local function windows()
  local pack, read_at = struct.pack, struct.unpack

  -- Sizes of the room for sums. So a key with two charges uses less memory than a busy one.
  local PLACES = {4, 16, 64, KEPT}

  -- The most columns of one String: those of a policy, and some former ones.
  local MOST = 32

  -- The bounds of kinds: twice windows of 100 ms to 366 days, us.
  local LEAST, GREATEST = 200000, 63244800000001

  -- For a kind: length of a step, us; format and width of a sum; modulus of totals.
  local function terms(kind)
    local window = (kind - kind % 2) / 2
    local length = (window + 63 - (window + 63) % 64) / 64
    if kind % 2 == 0 then
      return length, '>I4', 4, 4294967296
    end
    return length, '>I8', 8, 4503599627370496
  end

  local function step_of(kind, instant)
    local length = terms(kind)
    return (instant - instant % length) / length
  end

  -- The columns of a String by their kinds, the kinds in order, and the mark; nil if it is corrupt.
  local function columns_of(state)
    if #state < HEADER then
      return nil
    end
    local mark, count, at = read_at('>I8B', state)
    local columns, kinds, start = {}, {}, at + count * COLUMN
    if #state < start - 1 or mark > EXACT then
      return nil
    end
    for _ = 1, count do
      local column = {}
      column.kind, column.first, column.last, column.total, column.places, at = read_at('>I8I8I8I8I2', state, at)
      local _, _, width = terms(column.kind)
      column.sums = string.sub(state, start, start + column.places * width - 1)
      start = start + column.places * width
      if column.places > KEPT or column.places < KEPT and column.last - column.first > column.places
        or column.first > column.last or column.last > EXACT or column.total > EXACT
        or column.kind < LEAST or column.kind > GREATEST then
        return nil
      end
      columns[column.kind], kinds[#kinds + 1] = column, column.kind
    end
    if start == #state + 1 then
      return columns, kinds, mark
    end
  end

  -- The sum at the end of one of the last 129 steps, or of one before the first.
  local function sum_of(column, step)
    if step < column.first then
      return 0
    end
    if step >= column.last then
      return column.total
    end
    local _, format, width = terms(column.kind)
    return (read_at(format, column.sums, (step - column.first) % KEPT * width + 1))
  end

  -- The steps with a count, in ascending order: {step, count}.
  local function steps_of(column)
    local steps = {}
    local _, format, width, modulus = terms(column.kind)
    local from = math.max(column.first, column.last - 128)
    local before, place = sum_of(column, from - 1), (from - column.first) % KEPT
    for step = from, column.last do
      local sum = step == column.last and column.total or read_at(format, column.sums, place * width + 1)
      if sum ~= before then
        steps[#steps + 1] = {step, (sum - before) % modulus}
      end
      before, place = sum, (place + 1) % KEPT
    end
    return steps
  end

  -- The room for `count` sums.
  local function places_for(count)
    if count <= 0 then
      return 0
    end
    for _, places in ipairs(PLACES) do
      if places >= count then
        return places
      end
    end
    return KEPT
  end

  -- The column of these steps; nil without any.
  local function column_of(kind, steps)
    if #steps == 0 then
      return nil
    end
    local _, format, width, modulus = terms(kind)
    local first, last = steps[1][1], steps[#steps][1]
    local total, sums = 0, {}
    for number, step in ipairs(steps) do
      total = total + step[2]
      local following = steps[number + 1]
      if following then
        sums[#sums + 1] = string.rep(pack(format, total % modulus), following[1] - step[1])
      end
    end
    local places = places_for(last - first)
    sums[#sums + 1] = string.rep('\0', (places - (last - first)) * width)
    return {kind = kind, first = first, last = last, total = total % modulus, places = places,
      sums = table.concat(sums)}
  end

  -- The column as seen in a step. A step more than a window ahead was written before a clock
  -- was set back. It counts no more.
  local function seen_from(column, step)
    if not column or column.last <= step + 64 then
      return column
    end
    local steps = steps_of(column)
    while #steps > 0 and steps[#steps][1] > step + 64 do
      steps[#steps] = nil
    end
    return column_of(column.kind, steps)
  end

  -- The steps as a column of this kind can count them. Beyond its modulus, and so beyond each of
  -- its limits, only the latest charges matter.
  local function narrowed(kind, steps)
    local _, _, _, modulus = terms(kind)
    local left = modulus - 1
    for place = #steps, 1, -1 do
      steps[place][2] = math.min(steps[place][2], left)
      left = left - steps[place][2]
    end
    return steps
  end

  -- The kind of the same window with sums of the other width.
  local function other_width(kind)
    return kind % 2 == 0 and kind + 1 or kind - 1
  end

  -- The column of a kind as seen in a step. Without one it takes over the counts of sums with the
  -- other width.
  local function own_column(columns, kind, step)
    local other = other_width(kind)
    local former = not columns[kind] and seen_from(columns[other], step)
    if former then
      columns[kind], columns[other] = column_of(kind, narrowed(kind, steps_of(former))), nil
    end
    return seen_from(columns[kind], step)
  end

  -- The count in a step: its own, that of the 64 steps before it, and that of later ones. Each
  -- difference covers at most 65 steps. Their count is within the limit, and so below the
  -- modulus.
  local function counted_at(column, step)
    if not column or step > column.last + 64 then
      return 0
    end
    local _, _, _, modulus = terms(column.kind)
    local recent = sum_of(column, math.max(step, column.last) - 65)
    return (column.total - recent) % modulus + (recent - sum_of(column, step - 65)) % modulus
  end

  -- The sums and their room after `ended` steps, from place `from` on, ended with `sum`. A seldom
  -- used key gets no more room than it needs.
  local function filled(sums, places, from, ended, sum)
    local width, to = #sum, from + ended
    if to > places and places < KEPT then
      local more = ended < 16 and places_for(to) or math.min(to, KEPT)
      if to <= KEPT then
        return string.sub(sums, 1, from * width) .. string.rep(sum, ended) .. string.rep('\0', (more - to) * width), more
      end
      sums, places = sums .. string.rep('\0', (more - places) * width), more
    end
    if to <= KEPT then
      return string.sub(sums, 1, from * width) .. string.rep(sum, ended) .. string.sub(sums, to * width + 1), places
    end
    local over = to - KEPT
    sums = string.rep(sum, over) .. string.sub(sums, over * width + 1, from * width) .. string.rep(sum, KEPT - from)
    return sums, places
  end

  -- The column after a charge in a step.
  local function charged_in(column, kind, step, cost)
    if not column or step > column.last + 128 then
      return column_of(kind, {{step, cost}})
    end
    if step < column.last then
      local steps, place = steps_of(column), 1
      while steps[place] and steps[place][1] < step do
        place = place + 1
      end
      if steps[place] and steps[place][1] == step then
        steps[place][2] = steps[place][2] + cost
      else
        table.insert(steps, place, {step, cost})
      end
      return column_of(kind, steps)
    end
    local _, format, _, modulus = terms(kind)
    local from, ended = (column.last - column.first) % KEPT, step - column.last
    column.sums, column.places = filled(column.sums, column.places, from, ended, pack(format, column.total))
    column.last, column.total = step, (column.total + cost) % modulus
    return column
  end

  -- Takes units from one of the latest steps, in which more are left, as most returns of leases and
  -- reservations do. Returns whether it has; otherwise nothing has changed.
  local function lowered(column, step, units)
    local _, format, width, modulus = terms(column.kind)
    if step < column.first or step > column.last or step + 4 < column.last
      or (sum_of(column, step) - sum_of(column, step - 1)) % modulus <= units then
      return false
    end
    for later = step, column.last - 1 do
      local place = (later - column.first) % KEPT * width
      local sum = pack(format, (sum_of(column, later) - units) % modulus)
      column.sums = string.sub(column.sums, 1, place) .. sum .. string.sub(column.sums, place + width + 1)
    end
    column.total = (column.total - units) % modulus
    return true
  end

  -- The end of the segment after a step's, us. A segment is 64 steps. At its end the step has
  -- left the window.
  local function ends_at(kind, step)
    local length = terms(kind)
    return (step - step % 64 + 128) * length
  end

  -- Writes the columns of these kinds, and the other former columns that still count. Without any
  -- it deletes the key. A mark keeps the key as long as a charge would.
  local function write(call, key, now, mark, kinds, before, columns)
    local written, ours = {}, {}
    for _, kind in ipairs(kinds) do
      local column = columns[kind]
      ours[kind] = true
      if column and step_of(kind, now) <= column.last + 128 then
        written[#written + 1] = column
      end
    end
    for _, kind in ipairs(before) do
      local column = not ours[kind] and seen_from(columns[kind], step_of(kind, now))
      if column and #written < MOST and step_of(kind, now) <= column.last + 128 then
        written[#written + 1] = column
      end
    end
    local parts, ends = {pack('>I8B', mark, #written)}, now
    for number, column in ipairs(written) do
      parts[1 + number] = pack('>I8I8I8I8I2', column.kind, column.first, column.last, column.total, column.places)
      parts[1 + #written + number] = column.sums
      ends = math.max(ends, ends_at(column.kind, column.last))
    end
    if #written == 0 then
      if mark <= now then
        return call('DEL', key)
      end
      for _, kind in ipairs(kinds) do
        ends = math.max(ends, ends_at(kind, step_of(kind, now)))
      end
    end
    return call('SET', key, table.concat(parts), 'PX', life_until(ends, now))
  end

  return {
    steps_of = steps_of, charged_in = charged_in, column_of = column_of, columns_of = columns_of,
    counted_at = counted_at, filled = filled, lowered = lowered, other_width = other_width,
    own_column = own_column, write = write,
  }
end

