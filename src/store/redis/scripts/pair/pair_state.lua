-- Fixed windows or token buckets of one key: the states of all quotas of its policy, in one String.
-- The algorithm's part precedes, and the operation follows.
--
-- The parts of the String, all numbers big-endian:
--   till    8 bytes: the expiry of the key, us
--   count   1 byte: number of columns
--   the pairs of all columns, then their kinds and tail lengths, then their tails
--
-- A column, 34 bytes, is the state of one quota:
--   pair    16 bytes: the two numbers that change with charges
--   kind    16 bytes: two numbers that identify the quota; the algorithm's part defines all of them
--   tail    2 bytes: length of its tail, the data for refunds and undone reservations
--
-- Frequent changes come first. So a charge that changes only the pairs writes a few bytes. A SET
-- with TTL costs the server a microsecond more.
--
-- Columns of other quotas follow those of the policy while they count. The policy had these quotas
-- before, or has them on another node. A full write reads them and drops corrupt ones.
--
-- A quota has six numbers, a to f; a and b are its kind. The algorithm's part defines these:
--   standing(a, b, c, d, e, f, first, second)
--                         Returns the remaining units, and the base of a charge: instant, number.
--   added(a, b, instant, number, cost)
--                         Returns the pair after a charge.
--   ends_at(a, b, d, e, f, first, second)
--                         Returns when the pair stops counting, us. Without d, e and f, which other
--                         quotas lack, the instant is not too early.
--   goes_on(number, tail) Returns whether the tail still matters for a charge on this number.
--   is_held(tail)         Returns whether nothing may be charged now, whatever remains.
--   is_tail(length)       Returns whether a tail may have this length.
--   spare(instant)        Returns extra life, us, for a charged key that ends at this instant.
--                         Meanwhile no charge needs a new TTL.

local HEADER, COLUMN = 9, 34

-- Other functions on columns. Most checks need none, and creating them takes longer than those
-- checks. `carry` may follow, which adds pairs from columns of other kinds to those found, and then
-- `pair_columns.lua`:
--   columns_of(state)     Returns the columns of a String.
--   pairs_of(columns, kinds, is_own)
--                         Returns the pair and the tail of each quota, given {a, b}.
--   others(columns, from, own)
--                         Returns the columns from place `from` on that belong to no quota.
local function pairs_of_key()
  -- The most columns of one String: those of a policy, and some former ones.
  local MOST = 32

  -- The columns of a String; nil if it is corrupt.
  local function columns_of(state)
    if #state < HEADER then
      return nil
    end
    local till, count, at = struct.unpack('>I8B', state)
    local columns, rest, tails = {}, at + count * 16, at + count * COLUMN
    if #state < tails - 1 or till > EXACT then
      return nil
    end
    for number = 1, count do
      local column, length = {kind = string.sub(state, rest, rest + 15)}, nil
      column.first, column.second, at = struct.unpack('>I8I8', state, at)
      column.a, column.b, length, rest = struct.unpack('>I8I8I2', state, rest)
      if column.a == 0 or math.max(column.a, column.b, column.first, column.second) > EXACT
        or length > 0 and not is_tail(length) then
        return nil
      end
      column.tail = string.sub(state, tails, tails + length - 1)
      tails = tails + length
      columns[number] = column
    end
    if tails == #state + 1 then
      return columns
    end
  end

