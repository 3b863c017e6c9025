-- Sliding windows of one key: what each quota of its policy counted, all in one String. What is done with it follows.
--
-- One String, because a command costs more than what it reads: with keys for each quota, a check of three read six and
-- wrote three. And a call of one key is decided also while its slot moves.
--
-- mark, 8 bytes: until when reservations may be taken back, us; number of columns, 1 byte; the columns; their sums.
-- A column, 34 bytes, is what one quota counted:
--   kind    8 bytes: twice its window, us; plus 1 where its limit is 2^32 or more. A limit that crosses that line
--           counts in another column.
--   first   8 bytes: the bucket, numbered from the epoch, of its first charge
--   last    8 bytes: the last bucket that holds anything
--   total   8 bytes: what was charged from the first on, modulo 2^32; or 2^52, where its limit is that large
--   places  2 bytes: for how many sums there is room, at most 129
-- A sum, 4 or 8 bytes as its limit needs, is the total as it was when a bucket ended. That of bucket b is at place
-- (b - first) % 129, and kept for as long as b is one of the 129 before the last. So what buckets hold that follow one
-- another is one subtraction, and a clock may step back by a window and finds what it needs.
--
-- All numbers are big-endian. Columns of other quotas stay behind those of the policy as long as they count: of quotas
-- that it had before, or has by the configuration of another node.

local HEADER, COLUMN = 9, 34

-- Buckets before the last one whose sums are kept.
local KEPT = 129

-- What can be done with it. Most checks need none of these functions, and making them takes longer than what those do.
local function windows()
  local pack, read_at = struct.pack, struct.unpack

  -- For so many sums room is made, so that a key that is hit twice does not take what a busy one does.
  local PLACES = {4, 16, 64, KEPT}

  -- Columns that one String may have: those of a policy, and of some before it.
  local MOST = 32

  -- Kinds there may be: twice windows of 100 ms to 366 days, us.
  local LEAST, GREATEST = 200000, 63244800000001

  -- Of a kind: length of a bucket, us; format and width of a sum; what totals are taken modulo.
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

  -- The columns of a String by their kinds, these in order, and its mark; nil where somebody else wrote it.
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

  -- The sum at the end of a bucket: one of the last 129, or an earlier one than the first.
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

  -- What each bucket holds, those that hold nothing left out: {bucket, count} in ascending order.
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

  -- Room for that many sums.
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

  -- The column of such buckets; nil where there are none.
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

  -- The column as it is seen in a bucket. What lies further ahead than a window was written by a clock that has been
  -- set, and counts no more.
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

  -- What counts in a bucket: what was charged in the 64 before it, in itself and later. No more than 65 buckets are
  -- subtracted at once: what they hold is within the limit, and so below what totals are taken modulo.
  local function counted_at(column, bucket)
    if not column or bucket > column.last + 64 then
      return 0
    end
    local _, _, _, modulus = terms(column.kind)
    local recent = sum_of(column, math.max(bucket, column.last) - 65)
    return (column.total - recent) % modulus + (recent - sum_of(column, bucket - 65)) % modulus
  end

  -- Sums, and how many there is room for, when so many buckets, from the one at place `from` on, ended with `sum`. A
  -- key that is seldom hit gets no more room than it needs.
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

  -- When the segment after a bucket's ends, us: 64 buckets are a segment, and by then the bucket has left the window.
  local function ends_at(kind, bucket)
    local length = terms(kind)
    return (bucket - bucket % 64 + 128) * length
  end

  -- Writes the columns of these kinds, and of those that were there before what still counts; or deletes the key, if
  -- nothing does. A mark does for as long as a charge would.
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
    columns_of = columns_of, counted_at = counted_at, filled = filled, seen_from = seen_from, terms = terms,
    write = write,
  }
end

