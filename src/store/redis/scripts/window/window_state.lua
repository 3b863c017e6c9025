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
--   first   8 bytes: the bucket of its first charge, numbered from 1970
--   last    8 bytes: the last bucket with a count
--   total   8 bytes: all charges from the first on, modulo 2^32, or modulo 2^52 for such limits
--   places  2 bytes: number of places for sums, at most 129
--
-- A sum, 4 or 8 bytes as its limit needs, is the total at the end of a bucket. The sum of bucket b
-- is at place (b - first) % 129. It is kept while b is one of the 129 buckets before the last. So
-- one subtraction yields the count of adjacent buckets. A clock may step back by a window.
--
-- Columns of other quotas follow those of the policy while they count. The policy had these quotas
-- before, or has them on another node.

local HEADER, COLUMN = 9, 34

-- The number of buckets before the last one whose sums are kept.
local KEPT = 129

-- Other functions on columns. Most checks need none, and creating them takes longer than those
-- checks.
local function windows()
  local pack, read_at = struct.pack, struct.unpack

  -- Steps of room for sums. So a key with two charges uses less memory than a busy one.
  local PLACES = {4, 16, 64, KEPT}

  -- The most columns of one String: those of a policy, and some former ones.
  local MOST = 32

  -- The bounds of kinds: twice windows of 100 ms to 366 days, us.
  local LEAST, GREATEST = 200000, 63244800000001

  -- For a kind: length of a bucket, us; format and width of a sum; modulus of totals.
  local function terms(kind)
    local window = (kind - kind % 2) / 2
    local length = (window + 63 - (window + 63) % 64) / 64
    if kind % 2 == 0 then
      return length, '>I4', 4, 4294967296
    end
    return length, '>I8', 8, 4503599627370496
  end

  local function bucket_of(kind, instant)
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

  -- The sum at the end of one of the last 129 buckets, or of one before the first.
  local function sum_of(column, bucket)
    if bucket < column.first then
      return 0
    end
    if bucket >= column.last then
      return column.total
    end
    local _, format, width = terms(column.kind)
    return (read_at(format, column.sums, (bucket - column.first) % KEPT * width + 1))
  end

  -- The buckets with a count, in ascending order: {bucket, count}.
  local function buckets_of(column)
    local buckets = {}
    local _, format, width, modulus = terms(column.kind)
    local from = math.max(column.first, column.last - 128)
    local before, place = sum_of(column, from - 1), (from - column.first) % KEPT
    for bucket = from, column.last do
      local sum = bucket == column.last and column.total or read_at(format, column.sums, place * width + 1)
      if sum ~= before then
        buckets[#buckets + 1] = {bucket, (sum - before) % modulus}
      end
      before, place = sum, (place + 1) % KEPT
    end
    return buckets
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

  -- The column of these buckets; nil without any.
  local function column_of(kind, buckets)
    if #buckets == 0 then
      return nil
    end
    local _, format, width, modulus = terms(kind)
    local first, last = buckets[1][1], buckets[#buckets][1]
    local total, sums = 0, {}
    for number, bucket in ipairs(buckets) do
      total = total + bucket[2]
      local following = buckets[number + 1]
      if following then
        sums[#sums + 1] = string.rep(pack(format, total % modulus), following[1] - bucket[1])
      end
    end
    local places = places_for(last - first)
    sums[#sums + 1] = string.rep('\0', (places - (last - first)) * width)
    return {kind = kind, first = first, last = last, total = total % modulus, places = places,
      sums = table.concat(sums)}
  end

  -- The column as seen in a bucket. A bucket more than a window ahead was written before a clock
  -- was set back. It counts no more.
  local function seen_from(column, bucket)
    if not column or column.last <= bucket + 64 then
      return column
    end
    local buckets = buckets_of(column)
    while #buckets > 0 and buckets[#buckets][1] > bucket + 64 do
      buckets[#buckets] = nil
    end
    return column_of(column.kind, buckets)
  end

  -- The buckets as a column of this kind can count them. Beyond its modulus, and so beyond each of
  -- its limits, only the latest charges matter.
  local function narrowed(kind, buckets)
    local _, _, _, modulus = terms(kind)
    local left = modulus - 1
    for place = #buckets, 1, -1 do
      buckets[place][2] = math.min(buckets[place][2], left)
      left = left - buckets[place][2]
    end
    return buckets
  end

  -- The kind of the same window with sums of the other width.
  local function other_width(kind)
    return kind % 2 == 0 and kind + 1 or kind - 1
  end

  -- The column of a kind as seen in a bucket. Without one it takes over the counts of sums with the
  -- other width.
  local function own_column(columns, kind, bucket)
    local other = other_width(kind)
    local former = not columns[kind] and seen_from(columns[other], bucket)
    if former then
      columns[kind], columns[other] = column_of(kind, narrowed(kind, buckets_of(former))), nil
    end
    return seen_from(columns[kind], bucket)
  end

  -- The count in a bucket: its own, that of the 64 buckets before it, and that of later ones. Each
  -- difference covers at most 65 buckets. Their count is within the limit, and so below the
  -- modulus.
  local function counted_at(column, bucket)
    if not column or bucket > column.last + 64 then
      return 0
    end
    local _, _, _, modulus = terms(column.kind)
    local recent = sum_of(column, math.max(bucket, column.last) - 65)
    return (column.total - recent) % modulus + (recent - sum_of(column, bucket - 65)) % modulus
  end

  -- The sums and their room after `ended` buckets, from place `from` on, ended with `sum`. A seldom
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

  -- The column after a charge in a bucket.
  local function charged_in(column, kind, bucket, cost)
    if not column or bucket > column.last + 128 then
      return column_of(kind, {{bucket, cost}})
    end
    if bucket < column.last then
      local buckets, place = buckets_of(column), 1
      while buckets[place] and buckets[place][1] < bucket do
        place = place + 1
      end
      if buckets[place] and buckets[place][1] == bucket then
        buckets[place][2] = buckets[place][2] + cost
      else
        table.insert(buckets, place, {bucket, cost})
      end
      return column_of(kind, buckets)
    end
    local _, format, _, modulus = terms(kind)
    local from, ended = (column.last - column.first) % KEPT, bucket - column.last
    column.sums, column.places = filled(column.sums, column.places, from, ended, pack(format, column.total))
    column.last, column.total = bucket, (column.total + cost) % modulus
    return column
  end

  -- The end of the segment after a bucket's, us. A segment is 64 buckets. At its end the bucket has
  -- left the window.
  local function ends_at(kind, bucket)
    local length = terms(kind)
    return (bucket - bucket % 64 + 128) * length
  end

  -- Writes the columns of these kinds, and the other former columns that still count. Without any
  -- it deletes the key. A mark keeps the key as long as a charge would.
  local function write(call, key, now, mark, kinds, before, columns)
    local written, ours = {}, {}
    for _, kind in ipairs(kinds) do
      local column = columns[kind]
      ours[kind] = true
      if column and bucket_of(kind, now) <= column.last + 128 then
        written[#written + 1] = column
      end
    end
    for _, kind in ipairs(before) do
      local column = not ours[kind] and seen_from(columns[kind], bucket_of(kind, now))
      if column and #written < MOST and bucket_of(kind, now) <= column.last + 64 then
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
        ends = math.max(ends, ends_at(kind, bucket_of(kind, now)))
      end
    end
    return call('SET', key, table.concat(parts), 'PX', life_until(ends, now))
  end

  return {
    bucket_of = bucket_of, buckets_of = buckets_of, charged_in = charged_in, column_of = column_of,
    columns_of = columns_of, counted_at = counted_at, filled = filled, other_width = other_width,
    own_column = own_column, terms = terms, write = write,
  }
end

