-- The line of checks that wait for a token bucket. Only operations need it.
--
-- The record of a place has what each bucket was before: its kind, its pair and its tail. So a leave
-- restores that state and computes nothing. The core's `waiting.rs` of the embedded store has the
-- same steps, with an example.

-- The numbers of a tail, the largest debt that is written, and the most refunded debt.
local NUMBERS, MOST = '>I8I8I8I8I8I8I8', 4503599627370496

-- The bytes of these numbers. The name of the last place follows in the tail of the first bucket.
local NUMBERED = 56

-- The numbers of a quota in a record.
local function numbers_of(name)
  local repaid, price = string.match(name, '^b8%-(%d+)%-(%d+)$')
  return repaid and {tonumber(repaid), tonumber(price), 0}
end

-- The most places that one step frees. The next step goes on.
local FREED = 500

-- A name as a tail has it: six bytes in each eight, since former versions read numbers below 2^53.
local function written_name(name)
  return (string.gsub(name .. string.rep('\0', -#name % 12), '......', '\0\0%0'))
end

local function name_in(tail)
  local name = string.gsub(string.sub(tail, NUMBERED + 1), '..(......)', '%1')
  return (string.gsub(name, '%z+$', ''))
end

-- The names of the last places in line whose checks have an id. Buckets that were charged apart have
-- lines of their own.
local function last_places(columns)
  local names = {}
  for _, column in ipairs(columns) do
    if #column.tail > NUMBERED and line_of(column.tail) > now then
      names[#names + 1] = name_in(column.tail)
    end
  end
  return names
end

-- A bucket as the record of a place has it.
local function source_of(column)
  return column and struct.pack('>I8I8I8I8', column.a, column.b, column.first, column.second) .. column.tail or ''
end

-- The bucket before a place, after which it has this tail. It lacks the debt that refunds of other
-- charges have taken back since. Nil if such a refund counted another rate's fractions.
local function column_before(source, after, tail)
  local column = {kind = string.sub(source, 1, 16), tail = string.sub(source, 33)}
  column.a, column.b, column.first, column.second = struct.unpack('>I8I8I8I8', source)
  local is_same = column.a == after.a and column.b == after.b
  local _, began, last, _, refunded = struct.unpack(NUMBERS, tail)
  local marked, born, before, line, known, cleared = 0, 0, 0, 0, 0, 0
  if is_same and column.tail ~= '' then
    marked, born, before, line, known, cleared = struct.unpack(NUMBERS, column.tail)
  end
  -- A place that starts when all is repaid begins a ledger, whose sum of refunds is 0.
  local given = began > before and refunded or refunded - known
  if given ~= 0 and (given < 0 or not is_same or column.tail == '') then
    return nil
  end
  if is_same and column.tail ~= '' then
    column.second = math.max(0, column.second - given)
    local numbers = struct.pack(NUMBERS, marked, born, last, line, known + given, cleared, 0)
    column.tail = numbers .. string.sub(column.tail, NUMBERED + 1)
  end
  return column
end

-- The columns without the place of a record. Nil if the place is not the last charge of each of its
-- buckets: a later charge moves the debt or its instant, a refund by cost may have taken the place.
local function columns_before(columns, found, place)
  local own, before, rest = {}, {}, {}
  for q, source in ipairs(place) do
    local a, b = string.match(found[8 * q - 4], '^b8%-(%d+)%-(%d+)$')
    local number, debt, after = found[8 * q + 2], found[8 * q + 3], nil
    for _, column in ipairs(columns) do
      if not after and not own[column] and column.a == tonumber(a) and column.b == tonumber(b) then
        after = column
      end
    end
    if not after or after.tail == '' then
      return nil
    end
    local _, born, _, _, refunded, cleared = struct.unpack(NUMBERS, after.tail)
    if number < math.max(born, cleared) or after.first ~= found[2] or after.second + refunded ~= debt then
      return nil
    end
    own[after], own[after.kind] = true, true
    if source ~= '' then
      local column = column_before(source, after, after.tail)
      if not column then
        return nil
      end
      before[#before + 1] = column
    end
  end
  for _, column in ipairs(columns) do
    if not own[column] then
      rest[#rest + 1] = column
    end
  end
  local count = #before
  for _, column in ipairs(rest) do
    for place_before = 1, count do
      -- A debt of that rate was made since, by quotas that have more buckets.
      if column.kind == before[place_before].kind and not own[column.kind] then
        return nil
      end
    end
    before[#before + 1] = column
  end
  return before
end

-- The columns without the place of this name, if its caller has left or leaves now. Nil if it stays.
local function columns_without(columns, name)
  if name == id and leaving > 0 then
    local before = place and record[2] > now and columns_before(columns, record, place)
    freed = before and leaving or freed
    return before
  end
  local is_read, found, _, _, waits = pcall(record_of, prefix .. name)
  if not is_read and not string.find(tostring(found), 'foreign record', 1, true) then
    error(found)
  end
  return is_read and found and waits and found[3] == 1 and found[2] > now and columns_before(columns, found, waits)
end

-- Frees the places at the end of the line whose callers have left, and that of the operation's id if
-- it leaves now. Returns the columns then, and whether a place is free.
local function free_line(columns)
  local count, is_over = 0, false
  while count < FREED and not is_over do
    is_over = true
    for _, name in ipairs(last_places(columns)) do
      local before = is_over and columns_without(columns, name)
      if before then
        columns, count, is_over = before, count + 1, false
      end
    end
  end
  return columns, count > 0
end

